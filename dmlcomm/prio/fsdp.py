"""Tickets for the all_gathers and reduce_scatters of FSDP2, and for the all_reduces of HSDP."""

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dmlcomm.prio.module_hooks import ModuleHook
from dmlcomm.prio.ticket import ticket

# Weights that are missing stop a rank. Gradients are needed at the end of backward. FSDP2 starts
# each reduce_scatter after the one before, so these need no order among themselves.
LAST_GATHER = 126
REDUCE_SCATTER = 127

_disable: Any = torch.compiler.disable


class FsdpModuleHook(
    ModuleHook,
    reason="dmlcomm.prio.ticket_fsdp learns the order of modules in front of them, where FSDP2 "
    "gathers their weights: compile without fullgraph=True, or give fully_shard what "
    "torch.compile(module, fullgraph=True) returns",
):
    """Learns the order of the first forward pass."""


def ticket_fsdp(model: nn.Module) -> None:
    """Gives tickets to what the FSDP2 modules of a model send: what is needed first goes first.

    Gathers have the order in which modules need their weights: in the forward pass that in which
    they ran in the first one, and until then in which they are registered; in the backward pass the
    reverse of that in which they ended in this step. Those that a module was told to prefetch
    (`set_modules_to_forward_prefetch`, `set_modules_to_backward_prefetch`) have the order of its
    list. Gathers go before reduce_scatters, and before the all_reduces of HSDP, which have the
    ticket of their reduce_scatters.

    Call it after `fully_shard`. It uses `set_custom_all_gather`, so it replaces what was set by
    that. Lists of modules to prefetch may change afterwards: they count from the next step on.

    Args:
        model: with modules that were given to `fully_shard`.

    Raises:
        ValueError: it has none, or torch allows one of them no `set_custom_all_gather`.

    Example:
        >>> for layer in model.layers:
        ...     fully_shard(layer)
        >>> fully_shard(model)
        >>> dmlcomm.prio.ticket_fsdp(model)
    """
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError("no module was given to torch.distributed.fsdp.fully_shard")
    order = _Order(_state(module) for module in modules)
    for module in modules:
        module.set_custom_all_gather(_Gather(_state(module), order))  # type: ignore[arg-type]
        _note_first_run(module, order)
    for group in order.groups():
        _ticket_reductions(group)


def _state(module: nn.Module) -> Any:
    """What FSDP2 knows of a module; modules that were sharded together have one."""
    return module._get_fsdp_state()  # type: ignore[operator]


def _groups_of(state: Any) -> list[Any]:
    """Groups of parameters that are gathered together."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    group = state._fsdp_param_group  # older torch
    return [] if group is None else [group]


def _note_first_run(module: nn.Module, order: "_Order") -> None:
    """Before FSDP2 gathers the weights for it."""

    def note(_: nn.Module) -> None:
        handle.remove()
        order.note_run(_state(module))

    handle = module.register_forward_pre_hook(FsdpModuleHook(note), prepend=True)


def _ticket_reductions(group: Any) -> None:
    """FSDP2 starts them in `post_backward`; it lets its users replace reduce_scatters only."""
    post_backward = group.post_backward

    @functools.wraps(post_backward)
    def with_ticket(*args: Any) -> None:
        with ticket(REDUCE_SCATTER):
            post_backward(*args)

    group.post_backward = _disable(with_ticket)


class _Order:
    """In which FSDP2 gathers the weights of modules, in the forward and in the backward pass.

    Args:
        states: of the modules, as these are registered.
    """

    def __init__(self, states: Iterable[Any]) -> None:
        self._registered = dict.fromkeys(states)
        self._ran: dict[Any, None] = {}  # in the order of the first runs
        self._of_group = {group: state for state in self._registered for group in _groups_of(state)}
        self._forward: dict[Any, int] = {}
        self._backward: dict[Any, int] = {}
        self._backward_pass = -1  # of `_backward`; -1: none yet

    def groups(self) -> Iterable[Any]:
        return self._of_group

    def note_run(self, state: Any) -> None:
        self._ran.setdefault(state)
        self._forward.clear()

    def ticket(self, state: Any) -> int:
        """Of a gather that this thread starts now."""
        backward_pass = torch._C._current_graph_task_id()  # -1 outside of backward passes
        if backward_pass == -1:
            self._forward = self._forward or self._forward_places()
            places = self._forward
        else:
            if backward_pass != self._backward_pass:
                self._backward = self._backward_places()
                self._backward_pass = backward_pass
                self._forward.clear()  # what is prefetched may be another one in the next step
            places = self._backward
        return places[state] * (LAST_GATHER + 1) // max(len(places), LAST_GATHER + 1)

    def _forward_places(self) -> dict[Any, int]:
        order = dict.fromkeys([*self._ran, *self._registered])
        return _places(order, lambda state: state._states_to_forward_prefetch)

    def _backward_places(self) -> dict[Any, int]:
        """FSDP2 notes which groups have ended; those that it has not noted come last."""
        others = [*reversed(self._ran), *reversed(self._registered)]
        contexts = dict.fromkeys(state._comm_ctx for state in others)
        ended = chain.from_iterable(reversed(context.post_forward_order) for context in contexts)
        noted = [self._of_group[group] for group in ended if group in self._of_group]
        order = dict.fromkeys([*noted, *others])
        return _places(order, lambda state: state._states_to_backward_prefetch)


def _places(order: dict[Any, None], prefetched: Callable[[Any], list[Any]]) -> dict[Any, int]:
    """In `order`, but those which a state prefetches change places until they are as in its list.

    A state that is in no list stays where it is: FSDP2 stops for its weights.
    """
    places = {state: place for place, state in enumerate(order)}
    placed = set()
    for state in order:
        placed.add(state)
        listed = dict.fromkeys(x for x in prefetched(state) if x in order and x not in placed)
        free = sorted(places[one] for one in listed)
        places.update(zip(listed, free, strict=True))
        placed.update(listed)
    return places


class _Gather:
    """What FSDP2 asks of an all_gather of its user's."""

    def __init__(self, state: Any, order: _Order) -> None:
        self._state = state
        self._order = order

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        with ticket(self._order.ticket(self._state)):
            return dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
