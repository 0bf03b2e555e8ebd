"""Which parameters are read inside the modules of a model, before they are."""

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from dmlcomm.prio.module_hooks import BeforeUse, ModuleHook, ModuleHooks


class _Running(threading.local):
    """The modules that run in this thread, innermost last."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []


class ModuleReads:
    """Watches forward passes of a model until `remove`, in all threads.

    Functions of torch that are called with a parameter read it. They are seen while a module runs,
    but for those inside of what is compiled.

    Args:
        model: any module. It is watched from now on, in all forward passes of it or its modules.
        hook: the class of its hooks.
        enter: called with a module before its forward.
        saw: called with the innermost module that runs and a parameter, before that is read.
        before: see `BeforeUse`.
    """

    def __init__(
        self,
        model: nn.Module,
        hook: type[ModuleHook],
        enter: Callable[[nn.Module], None],
        saw: Callable[[nn.Module, nn.Parameter], None],
        before: BeforeUse | None = None,
    ) -> None:
        self._enter = enter
        self._running = _Running()
        self._mode = _Reads(lambda parameter: saw(self._running.modules[-1], parameter))
        self._lock = threading.Lock()
        self._num_threads = 0  # in which modules run
        self._is_removed = False
        self._hooks = ModuleHooks(model, hook, self._begin, self._end, before)

    def remove(self) -> None:
        """Ends watching, at the end of forward passes that have begun."""
        self._is_removed = True
        self._end_interrupted(calls=0)
        self._count_threads(0)

    def _begin(self, module: nn.Module) -> None:
        if self._running.modules and self._running.modules[0] is module:
            self._end_interrupted(calls=1)
        self._enter(module)
        if not self._running.modules:
            self._count_threads(1)
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._running.modules.append(module)

    def _end(self, module: nn.Module) -> None:
        running = self._running.modules
        if not running:  # `enter` has raised
            return
        # An inner module without a hook of its own, or an exception, may have left others here.
        while running and running.pop() is not module:
            pass
        if not running:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._count_threads(-1)

    def _end_interrupted(self, calls: int) -> None:
        """Ends this thread's forward pass if it has left its modules: KeyboardInterrupt and what
        else is no `Exception` keep torch from calling hooks.

        Args:
            calls: of the outermost module that do not belong to that pass.
        """
        running = self._running.modules
        if running and _calls_of(running[0]) <= calls:
            running.clear()
            _take_off(self._mode)
            self._count_threads(-1)

    def _count_threads(self, change: int) -> None:
        with self._lock:
            self._num_threads += change
            if self._is_removed and not self._num_threads:
                self._hooks.remove()


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


def _calls_of(module: nn.Module) -> int:
    """How many calls of it this thread is in."""
    count = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is module:
            count += 1
        frame = frame.f_back
    return count


def _take_off(mode: TorchFunctionMode) -> None:
    """Off the stack of this thread's modes, also from below others."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if mode in stack:
        above = stack[stack.index(mode) + 1 :]
        for _ in (mode, *above):
            _pop_mode()  # type: ignore[no-untyped-call]
        for other in above:
            _push_mode(other)  # type: ignore[no-untyped-call]


def _parameters_in(values: tuple[Any, ...] | list[Any]) -> Iterator[nn.Parameter]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if isinstance(value, nn.Parameter):
                yield value
        elif isinstance(value, tuple | list):  # the weights of an RNN
            yield from _parameters_in(value)
