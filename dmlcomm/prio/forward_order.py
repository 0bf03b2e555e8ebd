"""In which order the forward pass of a model first reads its parameters, and in which modules."""

from collections.abc import Iterator

from torch import nn

from dmlcomm.prio.module_hooks import ModuleHook
from dmlcomm.prio.module_reads import ModuleReads

NUM_TICKETS = 256


class ForwardOrder:
    """Watches forward passes of a model until `stop`.

    A module reads its own parameters when it runs. It may read those of other modules, too:
    `nn.MultiheadAttention` reads the weight of its `out_proj` without calling it, and a decoder may
    read the weight of an embedding. Functions of torch that are called with such a parameter show
    that; it counts as read when the innermost module that runs has begun.

    Args:
        model: any module. It is watched from now on, in all forward passes of it or its modules.
        hook: the class of hooks by which it is watched.
    """

    def __init__(self, model: nn.Module, hook: type[ModuleHook]) -> None:
        self._is_compiled = any(_is_compiled(module) for module in model.modules())
        model = without_compile(model)
        self._model = model
        # Modules that ran, in the order of their first run, and the parameters that each has read.
        self._reads: dict[nn.Module, dict[nn.Parameter, None]] = {}
        self._watch = ModuleReads(model, hook, self._ran, self._saw)

    def stop(self) -> None:
        """Ends watching."""
        self._watch.remove()

    def reads(self) -> dict[nn.Module, list[nn.Parameter]]:
        """The parameters that each module reads, for all modules that ran."""
        return {module: list(found) for module, found in self._reads.items()}

    def positions(self) -> dict[nn.Parameter, int]:
        """Parameter -> its place in the order, from 0; a shared one counts where it comes first."""
        order = dict.fromkeys(p for found in self._reads.values() for p in found)
        return {parameter: position for position, parameter in enumerate(order)}

    def assign(self, parameter: nn.Parameter) -> bool:
        """`parameter` was read unseen: by the innermost module around its owner that ran, if parts
        of the model are compiled. Else by code outside of all modules.

        Returns:
            Whether a module did.
        """
        if not self._is_compiled:
            return False
        for name, found in self._model.named_parameters(remove_duplicate=False):
            if found is parameter:
                for path in _paths_outwards(name):
                    module = self._model.get_submodule(path)
                    if module in self._reads:
                        self._reads[module][parameter] = None
                        return True
        return False

    def _ran(self, module: nn.Module) -> None:
        self._reads.setdefault(module, dict.fromkeys(module.parameters(recurse=False)))

    def _saw(self, module: nn.Module, parameter: nn.Parameter) -> None:
        self._reads[module][parameter] = None


def without_compile(model: nn.Module) -> nn.Module:
    """The model that was given to `torch.compile`, or `model` if it was not."""
    return getattr(model, "_orig_mod", model)


def ticket_at(position: int, count: int) -> int:
    """The ticket of what is needed at `position`, from 0, of `count` places."""
    return position * NUM_TICKETS // max(count, NUM_TICKETS)


def _is_compiled(module: nn.Module) -> bool:
    """Then functions of torch that it calls are not seen."""
    return module._compiled_call_impl is not None or without_compile(module) is not module


def _paths_outwards(name: str) -> Iterator[str]:
    """ "a.b.weight" -> "a.b", "a", ""."""
    while name:
        name = name.rpartition(".")[0]
        yield name
