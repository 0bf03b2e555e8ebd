"""The two ways in which the gradients of a group become averages on all ranks."""

from collections.abc import Sequence

import torch.distributed as dist

from dmlcomm.prio.fused_group import FusedGroup
from dmlcomm.prio.ticket import ticket


class AllReduce:
    """One operation per group, posted when its gradients are there."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self._process_group = process_group

    def post(self, group: FusedGroup) -> None:
        """The group's buffer is filled."""
        with ticket(group.ticket):
            work = dist.all_reduce(group.buffer, group=self._process_group, async_op=True)
        group.works.append(work)

    def complete(self, groups: Sequence[FusedGroup]) -> None:
        """All groups are posted: posts whatever is missing, in the same order on all ranks."""


class ScatterGather:
    """Zhang et al., "DeAR", ICDCS 2023: a reduce_scatter in backward, an all_gather beside forward.

    All gathers are posted at once when backward has ended, those that are needed first in front. So
    nothing is posted when weights are read, which may be on one rank only.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self._process_group = process_group

    def post(self, group: FusedGroup) -> None:
        work = dist.reduce_scatter_tensor(
            group.part, group.buffer, group=self._process_group, async_op=True
        )
        group.works.append(work)

    def complete(self, groups: Sequence[FusedGroup]) -> None:
        for group in groups:
            group.wait()
        for group in sorted(groups, key=lambda group: group.ticket):
            with ticket(group.ticket):
                work = dist.all_gather_into_tensor(
                    group.buffer, group.part, group=self._process_group, async_op=True
                )
            group.works.append(work)
