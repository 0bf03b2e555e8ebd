"""Forward hooks on the modules of a model that leave copies of the model alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_disable: Any = torch.compiler.disable
# Ends torch's error where a compiled model cannot call a hook as it is.
_REASON = (
    "DistributedOptimizer waits for weights in front of modules, between parts that are compiled: "
    'compile without fullgraph=True, or use schedule="plain"'
)


class ModuleHook:
    """A forward hook of a module that calls `function(module)`; a copy of it does nothing.

    The copy of a module (`copy.deepcopy`, `torch.save` of the whole model) is a model of its own.
    `before_copy` is called first, so that what is copied is up to date.
    """

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

    __call__: Callable[..., None] = _disable(_call, reason=_REASON)

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
    """

    read: Callable[[], None]
    load: Callable[[], None]


class ModuleHooks:
    """Hooks on every module of a model, which `remove` takes away again.

    Args:
        model: whose modules get them.
        enter: called with a module before its forward.
        leave: called with it afterwards, also if the forward has raised; None: no hook.
        before: see `BeforeUse`; None: no hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        enter: Callable[[nn.Module], None],
        leave: Callable[[nn.Module], None] | None = None,
        before: BeforeUse | None = None,
    ) -> None:
        first = ModuleHook(enter, None if before is None else before.read)
        self._handles: list[Any] = []
        for module in model.modules():
            # Before hooks that read weights, as those of spectral_norm.
            self._handles.append(module.register_forward_pre_hook(first, prepend=True))
            if leave is not None:
                after = ModuleHook(leave)
                self._handles.append(module.register_forward_hook(after, always_call=True))
            if before is not None:
                register: Any = module.register_state_dict_pre_hook
                self._handles.append(register(ModuleHook(lambda _: before.read())))
                register = module.register_load_state_dict_pre_hook
                self._handles.append(register(ModuleHook(lambda _: before.load())))
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
