"""Tickets for the all_gathers and reduce_scatters of FSDP2."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dmlcomm.prio.ticket import ticket

# Weights that are missing stop a rank. Gradients are needed at the end of backward.
LAST_GATHER = 126
REDUCE_SCATTER = 127


def ticket_fsdp(model: nn.Module) -> None:
    """Gives tickets to what the FSDP2 modules of a model send: what is needed first goes first.

    Of gathers that are on their way together, because FSDP prefetches, the next one that is needed
    goes first: in the forward pass that of the earlier module, in the backward pass that of the
    later one. Gathers go before reduce_scatters. Modules run in the order in which they are
    registered; if not, only the tickets are less good.

    Call it after `fully_shard`. It uses `set_custom_all_gather` and `set_custom_reduce_scatter`, so
    it replaces what was set by these.

    Args:
        model: with modules that were given to `fully_shard`.

    Raises:
        ValueError: it has none.

    Example:
        >>> for layer in model.layers:
        ...     fully_shard(layer)
        >>> fully_shard(model)
        >>> dmlcomm.prio.ticket_fsdp(model)
    """
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError("no module was given to torch.distributed.fsdp.fully_shard")
    for position, module in enumerate(modules):
        forward = position * (LAST_GATHER + 1) // max(len(modules), LAST_GATHER + 1)
        module.set_custom_all_gather(_Gather(forward, LAST_GATHER - forward))  # type: ignore[arg-type]
        module.set_custom_reduce_scatter(_ReduceScatter())  # type: ignore[arg-type]


class _Comm:
    """What FSDP2 asks of an operation of its user's."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Comm):
    def __init__(self, in_forward: int, in_backward: int) -> None:
        self._in_forward = in_forward
        self._in_backward = in_backward

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        # Of a thread that carries out a backward pass.
        is_backward = torch._C._current_graph_task_id() != -1
        with ticket(self._in_backward if is_backward else self._in_forward):
            return dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )


class _ReduceScatter(_Comm):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        with ticket(REDUCE_SCATTER):
            return dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
