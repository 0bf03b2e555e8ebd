"""Tickets for the all_gathers and reduce_scatters of FSDP2."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dmlcomm.prio.module_hooks import ModuleHook
from dmlcomm.prio.ticket import ticket

# Weights that are missing stop a rank. Gradients are needed at the end of backward.
LAST_GATHER = 126
REDUCE_SCATTER = 127


def ticket_fsdp(model: nn.Module) -> None:
    """Gives tickets to what the FSDP2 modules of a model send: what is needed first goes first.

    Of gathers that are on their way together, because FSDP prefetches, the next one that is needed
    goes first: in the forward pass that of the earlier module, in the backward pass that of the
    later one. Gathers go before reduce_scatters. The order is that of the first forward pass, until
    then the one in which modules are registered.

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
    order = itertools.count()
    for position, module in enumerate(modules):
        gather = _Gather(position, len(modules))
        module.set_custom_all_gather(gather)  # type: ignore[arg-type]
        module.set_custom_reduce_scatter(_ReduceScatter())  # type: ignore[arg-type]
        _place_when_it_runs(module, gather, order)


def _place_when_it_runs(module: nn.Module, gather: "_Gather", order: Iterator[int]) -> None:
    """In the order of the first runs, before FSDP gathers the weights for it."""

    def place(_: nn.Module) -> None:
        handle.remove()
        gather.position = next(order)

    handle = module.register_forward_pre_hook(ModuleHook(place), prepend=True)


class _Comm:
    """What FSDP2 asks of an operation of its user's."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Comm):
    """Of the module at a position in the forward pass, of `count` modules."""

    def __init__(self, position: int, count: int) -> None:
        self.position = position
        self._count = count

    def ticket(self, is_backward: bool) -> int:
        forward = self.position * (LAST_GATHER + 1) // max(self._count, LAST_GATHER + 1)
        return LAST_GATHER - forward if is_backward else forward

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        # Of a thread that carries out a backward pass.
        with ticket(self.ticket(is_backward=torch._C._current_graph_task_id() != -1)):
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
