"""Which gradients of a step are there."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn


class Arrivals:
    """Counts the backward passes of each parameter, and sees whether its gradient is changed.

    Args:
        parameters: of the optimizer, in its order.
        name_of: of a parameter, for errors.
        passes: backward passes per step.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        name_of: Callable[[nn.Parameter], str],
        passes: int,
    ) -> None:
        self.passes = passes
        self._parameters = list(parameters)
        self._name_of = name_of
        self._number = {parameter: i for i, parameter in enumerate(parameters)}
        self._handles: dict[nn.Parameter, Any] = {}
        self.watches_all = True
        self.reset()

    def reset(self) -> None:
        """For the next step."""
        count = len(self._parameters)
        self._counts = [0] * count
        self.has_gradient = [False] * count
        # The last passes of parameters, in order: gradient, and its version.
        self._complete: dict[int, tuple[torch.Tensor, int]] = {}

    def watch(self, arrived: Callable[[nn.Parameter], None]) -> None:
        """Calls `arrived` when a gradient has been accumulated."""
        for parameter in self._parameters:
            if parameter.requires_grad and parameter not in self._handles:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._handles[parameter] = register(arrived)

    def watch_only(self, number: int) -> None:
        """From now on one parameter stands for all: `take_all` has to ask for gradients."""
        self.watches_all = False
        for parameter in list(self._handles):
            if self._number[parameter] != number:
                self._handles.pop(parameter).remove()

    def unwatch(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    @property
    def order(self) -> list[int]:
        """Parameters whose last pass is done, by number, in the order of their gradients."""
        return list(self._complete)

    def take(self, parameter: nn.Parameter, is_local: bool) -> int | None:
        """A gradient has been accumulated.

        Args:
            parameter: whose.
            is_local: this pass is not counted, as its gradients are not sent.

        Returns:
            The parameter's number if this was its last pass, else None.
        """
        number = self._number[parameter]
        gradient = parameter.grad
        if gradient is None:  # another hook has taken it
            return None
        if gradient.layout != torch.strided:
            raise RuntimeError(f"{self._name_of(parameter)} has a sparse gradient: not supported")
        self.has_gradient[number] = True
        if is_local and number not in self._complete:
            return None
        self._counts[number] += 1
        if self._counts[number] > self.passes:
            raise RuntimeError(
                f"{self._name_of(parameter)} has a gradient from {self._counts[number]} backward "
                f"passes, but backward_passes_per_step is {self.passes}: call step() after as "
                f"many, or use no_sync() for those before the last one"
            )
        if self._counts[number] < self.passes:
            return None
        self._complete[number] = (gradient, gradient._version)
        return number

    def take_all(self) -> None:
        """Every gradient that is there counts, also that of a parameter that is not watched."""
        self.take_present(range(len(self._parameters)))

    def take_present(self, numbers: Iterable[int]) -> None:
        """As `take_all`, of some parameters."""
        for number in numbers:
            self.has_gradient[number] = self._parameters[number].grad is not None

    def check_unchanged(self) -> None:
        """The gradients that were sent are still the parameters' gradients."""
        for number, (gradient, version) in self._complete.items():
            parameter = self._parameters[number]
            if parameter.grad is not gradient or gradient._version != version:
                raise RuntimeError(
                    f"the gradient of {self._name_of(parameter)} was changed after backward, when "
                    f"it had been sent already. Call synchronize() of the optimizer first, then "
                    f"clip, unscale or change gradients, then call step()"
                )
