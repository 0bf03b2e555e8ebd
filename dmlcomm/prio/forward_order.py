"""In which order the forward pass of a model first reads its parameters, and in which modules."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dmlcomm.prio.module_hooks import ModuleHooks

NUM_TICKETS = 256


class ForwardOrder:
    """Watches forward passes of a model until `stop`.

    A module reads its own parameters when it runs. It may read those of other modules, too:
    `nn.MultiheadAttention` reads the weight of its `out_proj` without calling it, and a decoder may
    read the weight of an embedding. Functions of torch that are called with such a parameter show
    that; it counts as read when the innermost module that runs has begun.

    Args:
        model: any module. It is watched from now on, in all forward passes of it or its modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # Modules that ran, in the order of their first run, and the parameters that each has read.
        self._reads: dict[nn.Module, dict[nn.Parameter, None]] = {}
        self._running: list[nn.Module] = []
        self._mode = _Reads(self)
        self._hooks = ModuleHooks(model, self._enter, self._leave)

    def stop(self) -> None:
        """Ends watching."""
        self._hooks.remove()

    def reads(self) -> dict[nn.Module, list[nn.Parameter]]:
        """The parameters that each module reads, for all modules that ran."""
        return {module: list(found) for module, found in self._reads.items()}

    def positions(self) -> dict[nn.Parameter, int]:
        """Parameter -> its place in the order, from 0; a shared one counts where it comes first."""
        order = dict.fromkeys(p for found in self._reads.values() for p in found)
        return {parameter: position for position, parameter in enumerate(order)}

    def assign(self, parameter: nn.Parameter) -> bool:
        """`parameter` was read unseen: by the innermost module around its owner that ran.

        Returns:
            Whether a module around it did.
        """
        for name, found in self._model.named_parameters(remove_duplicate=False):
            if found is parameter:
                for path in _paths_outwards(name):
                    module = self._model.get_submodule(path)
                    if module in self._reads:
                        self._reads[module][parameter] = None
                        return True
        return False

    def _enter(self, module: nn.Module) -> None:
        if not self._running:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._running.append(module)
        self._reads.setdefault(module, dict.fromkeys(module.parameters(recurse=False)))

    def _leave(self, module: nn.Module) -> None:
        # An inner module without a hook of its own, or an exception, may have left others here.
        while self._running and self._running.pop() is not module:
            pass
        if not self._running:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def saw(self, parameter: nn.Parameter) -> None:
        """The innermost module that runs reads `parameter`."""
        if self._running:
            self._reads[self._running[-1]][parameter] = None


class _Reads(TorchFunctionMode):
    """Tells a `ForwardOrder` of the parameters that functions of torch are called with."""

    def __init__(self, order: ForwardOrder) -> None:
        super().__init__()
        self._order = order

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # nothing to be seen in what is compiled
            return func(*args, **kwargs)
        for parameter in _parameters_in((*args, *kwargs.values())):
            self._order.saw(parameter)
        return func(*args, **kwargs)


def ticket_at(position: int, count: int) -> int:
    """The ticket of what is needed at `position`, from 0, of `count` places."""
    return position * NUM_TICKETS // max(count, NUM_TICKETS)


def _parameters_in(values: tuple[Any, ...] | list[Any]) -> Iterator[nn.Parameter]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if isinstance(value, nn.Parameter):
                yield value
        elif isinstance(value, tuple | list):  # the weights of an RNN
            yield from _parameters_in(value)


def _paths_outwards(name: str) -> Iterator[str]:
    """ "a.b.weight" -> "a.b", "a", ""."""
    while name:
        name = name.rpartition(".")[0]
        yield name
