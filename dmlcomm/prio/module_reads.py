"""Which parameters are read inside the modules of a model, before they are."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dmlcomm.prio.module_hooks import ModuleHooks


class ModuleReads:
    """Watches forward passes of a model until `remove`.

    Functions of torch that are called with a parameter read it. They are seen while a module runs,
    but for those inside of what is compiled.

    Args:
        model: any module. It is watched from now on, in all forward passes of it or its modules.
        enter: called with a module before its forward.
        saw: called with the innermost module that runs and a parameter, before that is read.
        before_read: see `ModuleHooks`.
    """

    def __init__(
        self,
        model: nn.Module,
        enter: Callable[[nn.Module], None],
        saw: Callable[[nn.Module, nn.Parameter], None],
        before_read: Callable[[], None] | None = None,
    ) -> None:
        self._enter = enter
        self._running: list[nn.Module] = []
        self._mode = _Reads(lambda parameter: saw(self._running[-1], parameter))
        self._hooks = ModuleHooks(model, self._begin, self._end, before_read)

    def remove(self) -> None:
        self._hooks.remove()

    def _begin(self, module: nn.Module) -> None:
        self._enter(module)
        if not self._running:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._running.append(module)

    def _end(self, module: nn.Module) -> None:
        if not self._running:  # it was removed, or `enter` has raised
            return
        # An inner module without a hook of its own, or an exception, may have left others here.
        while self._running and self._running.pop() is not module:
            pass
        if not self._running:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class _Reads(TorchFunctionMode):
    """Calls `saw` with the parameters that functions of torch are called with."""

    def __init__(self, saw: Callable[[nn.Parameter], None]) -> None:
        super().__init__()
        self._saw = saw

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # nothing to be seen in what is compiled
            return func(*args, **kwargs)
        for parameter in _parameters_in((*args, *kwargs.values())):
            self._saw(parameter)
        return func(*args, **kwargs)


def _parameters_in(values: tuple[Any, ...] | list[Any]) -> Iterator[nn.Parameter]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if isinstance(value, nn.Parameter):
                yield value
        elif isinstance(value, tuple | list):  # the weights of an RNN
            yield from _parameters_in(value)
