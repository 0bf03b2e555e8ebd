"""What all ranks take from rank 0 after the first step: the order of gradients and of reads."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dmlcomm.hooks.another_group import another_group
from dmlcomm.hooks.group_options import options_of
from dmlcomm.prio.forward_order import ForwardOrder

# Position of a parameter that has a gradient although no module reads it: other code does.
EARLY = -1


@dataclass(frozen=True)
class Agreement:
    """The same on all ranks.

    Attributes:
        order: parameters, by number, in the order in which their gradients become ready.
        positions: by parameter: its place among all of them in the order in which the forward pass
            reads them first. `EARLY`, or the number of parameters, for one that it does not read:
            with and without a gradient.
    """

    order: list[int]
    positions: list[int]

    @property
    def has_reads(self) -> bool:
        """Whether rank 0 has seen modules read parameters."""
        return any(0 <= position < len(self.positions) for position in self.positions)


def agree(
    process_group: dist.ProcessGroup,
    device: torch.device,
    order: Sequence[int],
    positions: Sequence[int],
) -> Agreement:
    """Rank 0 tells the others. All ranks call it, with as many parameters.

    Args:
        process_group: the ranks.
        device: on which the group communicates.
        order: parameters that had a gradient, in its order. Others follow, last ones first.
        positions: see `Agreement`.
    """
    seen = set(order)
    rest = [number for number in reversed(range(len(positions))) if number not in seen]
    table = torch.tensor([[*order, *rest], list(positions)], dtype=torch.int64, device=device)
    dist.broadcast(table, dist.get_global_rank(process_group, 0), group=process_group)
    return Agreement(*table.tolist())


def positions_of(
    parameters: Sequence[nn.Parameter], has_gradient: Sequence[bool], forward: ForwardOrder | None
) -> list[int]:
    """By parameter, see `Agreement`. `forward` is None if no forward pass was seen."""
    seen: dict[nn.Parameter, int] = {}
    if forward is not None:
        known = forward.positions()
        for parameter, has in zip(parameters, has_gradient, strict=True):
            if has and parameter not in known:
                forward.assign(parameter)
        own = set(parameters)
        order = (parameter for parameter in forward.positions() if parameter in own)
        seen = {parameter: place for place, parameter in enumerate(order)}
    return [
        seen.get(parameter, EARLY if has else len(parameters))
        for parameter, has in zip(parameters, has_gradient, strict=True)
    ]


def private_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """A group of the same ranks, with the same options; all of them call it.

    When gradients are posted depends on the rank, so operations of the user's group, such as the
    all_reduce of a loss before a step, could meet them in another order there.

    Args:
        process_group: None: all ranks.

    Raises:
        ValueError: there is no group, this rank is no member, or `reconfigure` has named the ranks.
    """
    if process_group is None and not dist.is_initialized():
        raise ValueError("no process group: call torch.distributed.init_process_group() first")
    if dist.get_rank(process_group) < 0:
        raise ValueError("this rank is no member of process_group: only members make the optimizer")
    options = options_of(process_group or dist.group.WORLD)
    if getattr(options, "is_reconfigured", False):
        raise ValueError(
            "the ranks of process_group were named by reconfigure(), and torch makes no further "
            "groups of such ranks, as DistributedOptimizer needs one: use DistributedDataParallel"
        )
    config = dist.get_backend_config(process_group)
    are_ours = all(part.endswith("dmlcomm") for part in config.split(","))
    return another_group(process_group, options if are_ours else None)


def give_back(process_group: dist.ProcessGroup) -> None:
    """Ends a `private_group`. Its ranks do so after the same operations."""
    with contextlib.suppress(ValueError):  # torch has ended it, as `shrink_group` does
        dist.destroy_process_group(process_group)


def broadcast_weights(process_group: dist.ProcessGroup, tensors: Sequence[torch.Tensor]) -> None:
    """Gives all ranks the values of rank 0."""
    root = dist.get_global_rank(process_group, 0)
    works: list[Any] = [
        dist.broadcast(tensor.detach(), root, group=process_group, async_op=True)
        for tensor in tensors
    ]
    for work in works:
        work.wait()
