"""Updates that wait until their parameters are needed."""

import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from dmlcomm.prio.fused_group import FusedGroup
from dmlcomm.prio.gradients import replaced_gradients
from dmlcomm.prio.optimizer_part import OptimizerPart, Options


class DeferredUpdates:
    """After a step: the groups whose parameters are not updated yet.

    A parameter is **stale** from the step until the module that reads it has waited for its update,
    or all updates were made. A gradient of a stale parameter comes from the old weight.

    Attributes:
        stale: these parameters.

    Args:
        optimizer: the user's.
        groups: all of its groups.
        name_of: of a parameter, for errors.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[FusedGroup],
        name_of: Callable[[nn.Parameter], str],
    ) -> None:
        self._name_of = name_of
        self._part = OptimizerPart(optimizer)
        self._groups = groups
        self._group_of = {p: group for group in groups for p in group.parameters}
        self._pending: dict[FusedGroup, Options] = {}
        self._lock = threading.RLock()  # modules may run in several threads
        # Single parameters: an update of a group for one of them proves nothing of the others.
        self.stale: set[nn.Parameter] = set()

    def defer(self, options: Options) -> None:
        """All groups have been posted: updates them later, with these options."""
        self._pending = dict.fromkeys(self._groups, options)
        self.stale = set(self._group_of)
        if not options.group_of.keys() <= self._group_of.keys():
            self._update_frozen(options)
        for group in self._groups:
            if group.is_early:
                self.refresh(group.parameters)

    def refresh(self, parameters: Iterable[nn.Parameter]) -> None:
        """Before these parameters are read: waits for their averages and updates them."""
        for parameter in parameters:
            if parameter in self.stale:
                self.apply(self._group_of[parameter])
                self.stale.discard(parameter)

    def flush(self) -> None:
        """Makes all updates."""
        for group in list(self._pending):
            self.apply(group)
        self.stale.clear()

    def drop(self) -> None:
        """Leaves out the updates that are not made yet."""
        self._pending.clear()
        self.stale.clear()

    def apply(self, group: FusedGroup) -> None:
        """Updates the parameters of one group, if that is to be done."""
        with self._lock:
            options = self._pending.get(group)
            if options is None:
                return
            # Function modes of a forward pass see no update. `ModuleReads` would begin it again.
            with torch._C.DisableTorchFunction():
                # What fails until the gradients are there still waits, and fails again. An update
                # that has begun is never made again.
                group.wait()
                with replaced_gradients(group.averages()):
                    self._pending.pop(group, None)
                    self._part.step(options, group.averages().keys())

    def _update_frozen(self, options: Options) -> None:
        """Parameters that require no gradients any more, but have some, are updated like others."""
        own = self._group_of
        frozen = dict.fromkeys(p for p in options.group_of if p.grad is not None and p not in own)
        self._part.step(options, frozen.keys())

    def check_not_stale(self, parameter: nn.Parameter) -> None:
        """`parameter` has a gradient.

        Raises:
            RuntimeError: it was read before its last update.
        """
        if parameter in self.stale:
            raise RuntimeError(
                f"{self._name_of(parameter)} was read before its last update: by code outside of "
                f"the modules of the model, or in a part of it that is compiled. "
                f"Call flush() of the optimizer before such a forward pass, "
                f'or use schedule="plain"'
            )
