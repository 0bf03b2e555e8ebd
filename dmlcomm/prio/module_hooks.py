"""Hooks on the modules of a model that leave copies of the model alone."""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn

_disable: Any = torch.compiler.disable
# Looks at parameters for their gradients alone.
_ZERO_GRAD = nn.Module.zero_grad.__code__


class ModuleHook:
    """A forward hook of a module that calls `function(module)`; a copy of it does nothing.

    The copy of a module (`copy.deepcopy`, `torch.save` of the whole model) is a model of its own.
    `before_copy` is called first, so that what is copied is up to date.

    Each user has a class of its own. Its reason is part of torch's error where a compiled model has
    no place to call the hook, and says who is called there and what to do. Copies are of this
    class, and fit into what is compiled.
    """

    def __init_subclass__(cls, *, reason: str) -> None:
        cls.__call__ = _disable(cls._call, reason=reason)  # type: ignore[method-assign]

    def __init__(
        self,
        function: Callable[[nn.Module], object] | None = None,
        before_copy: Callable[[], None] | None = None,
    ) -> None:
        self._function = function
        self._before_copy = before_copy

    def _call(self, module: nn.Module, *_: Any) -> None:
        if self._function is not None:
            self._function(module)

    def __call__(self, *_: Any) -> None:
        """That of a copy."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModuleHook":
        self._prepare_copy()
        return ModuleHook()

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[()]]:
        self._prepare_copy()
        return ModuleHook, ()

    def _prepare_copy(self) -> None:
        if self._before_copy is not None:
            self._before_copy()


@dataclass(frozen=True)
class BeforeUse:
    """Calls that are made before code outside of forward passes uses the state of modules.

    Attributes:
        read: before it is read, or the module is copied.
        load: before it is loaded.
        hand_out: before `named_parameters` and `parameters` give a parameter.
        around: modules with the parameters of the model that are no part of it.
    """

    read: Callable[[], None]
    load: Callable[[], None]
    hand_out: Callable[[nn.Parameter], None]
    around: Sequence[nn.Module] = ()


@dataclass(frozen=True)
class _Handle:
    """As torch's of hooks."""

    remove: Callable[[], None]


class NamedParameters:
    """In the place of `named_parameters` of a module, from which `parameters` takes them, too.

    Each parameter is prepared only when the reader asks for it: `next(model.parameters())` does not
    wait for all. A deep copy of the module has its own, as before; a shallow one shares this, as it
    shares the parameters.
    """

    NAME = "named_parameters"

    def __init__(self, module: nn.Module) -> None:
        own = vars(module).get(self.NAME)
        self._module = module
        # What the module has instead of that of its class; a shallow copy has that of the original.
        self._own: Any = own._own if isinstance(own, NamedParameters) else own
        self._hand_out: list[Callable[[nn.Parameter], None]] = []

    @classmethod
    def of(cls, module: nn.Module) -> "NamedParameters":
        """That of `module`, which has it from now on."""
        found = vars(module).get(cls.NAME)
        if not isinstance(found, cls) or found._module is not module:
            found = vars(module)[cls.NAME] = cls(module)
        return found

    def add(self, hand_out: Callable[[nn.Parameter], None]) -> "_Handle":
        """See `BeforeUse`; several optimizers may have one each."""
        self._hand_out.append(hand_out)
        return _Handle(lambda: self._remove(hand_out))

    def _remove(self, hand_out: Callable[[nn.Parameter], None]) -> None:
        self._hand_out.remove(hand_out)
        attributes = vars(self._module)
        if self._hand_out or attributes.get(self.NAME) is not self:
            return
        if self._own is None:
            del attributes[self.NAME]
        else:
            attributes[self.NAME] = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        found: Iterator[tuple[str, nn.Parameter]] = self._usual()(*args, **kwargs)
        if torch.compiler.is_compiling():  # what is compiled waits outside
            return found
        caller = sys._getframe(1).f_back  # of `parameters`
        if caller is not None and caller.f_code is _ZERO_GRAD:
            return found
        return self._prepared(found)

    def _prepared(
        self, found: Iterator[tuple[str, nn.Parameter]]
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in found:
            for hand_out in self._hand_out:
                hand_out(parameter)
            yield name, parameter

    @property
    def __func__(self) -> Any:
        """By which torch.compile knows that these are the usual parameters."""
        return self._usual().__func__

    def _usual(self) -> Any:
        if self._own is not None:
            return self._own
        return MethodType(type(self._module).named_parameters, self._module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._usual(), memo)

    def __reduce__(self) -> Any:
        return _unchanged, (self._usual(),)


def _unchanged(value: Any) -> Any:
    return value


class ModuleHooks:
    """Hooks on every module of a model, which `remove` takes away again.

    Args:
        model: whose modules get them.
        hook: the class of the hooks.
        enter: called with a module before its forward.
        leave: called with it afterwards, also if the forward has raised; None: no hook.
        before: see `BeforeUse`; None: no hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        hook: type[ModuleHook],
        enter: Callable[[nn.Module], None],
        leave: Callable[[nn.Module], None] | None = None,
        before: BeforeUse | None = None,
    ) -> None:
        first = hook(enter, None if before is None else before.read)
        self._handles: list[Any] = []
        if before is not None:
            for module in dict.fromkeys([*before.around, *model.modules()]):
                self._handles.append(NamedParameters.of(module).add(before.hand_out))
        for module in model.modules():
            # Before hooks that read weights, as those of spectral_norm.
            self._handles.append(module.register_forward_pre_hook(first, prepend=True))
            if leave is not None:
                after = hook(leave)
                self._handles.append(module.register_forward_hook(after, always_call=True))
            if before is not None:
                register: Any = module.register_state_dict_pre_hook
                self._handles.append(register(hook(lambda _: before.read())))
                register = module.register_load_state_dict_pre_hook
                self._handles.append(register(hook(lambda _: before.load())))
                _copy_hooks_first(module)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _copy_hooks_first(module: nn.Module) -> None:
    """Makes copies of `module` copy its forward pre-hooks before its parameters.

    They copy its attributes in the order in which it got them, and a `ModuleHook` that is copied
    brings the parameters up to date.
    """
    attributes = module.__dict__
    others = {name: attributes.pop(name) for name in [*attributes] if name != "_forward_pre_hooks"}
    attributes.update(others)
