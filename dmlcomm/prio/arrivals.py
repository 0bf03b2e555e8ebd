"""Which gradients of a step are there."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn


class ArrivalHook:
    """Of a parameter: calls a bound method when its gradient has been accumulated.

    The garbage collector does not see hooks of tensors, so this one keeps nothing alive.
    """

    def __init__(self, arrived: Callable[[nn.Parameter], None]) -> None:
        self._arrived: weakref.WeakMethod[Any] = weakref.WeakMethod(arrived)

    @property
    def is_in_use(self) -> bool:
        return self._arrived() is not None

    def __call__(self, parameter: nn.Parameter) -> None:
        arrived = self._arrived()
        if arrived is not None:
            arrived(parameter)


def is_watched(parameter: torch.Tensor) -> bool:
    """Whether there are `Arrivals` that count its gradients."""
    hooks = parameter._post_accumulate_grad_hooks or {}
    return any(isinstance(hook, ArrivalHook) and hook.is_in_use for hook in hooks.values())


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
        self.reset()

    def reset(self) -> None:
        """For the next step."""
        count = len(self._parameters)
        self._counts = [0] * count
        self.has_gradient = [False] * count
        # The last passes of parameters, in order: gradient, and its version.
        self._complete: dict[int, tuple[torch.Tensor, int]] = {}

    def watch(self, arrived: Callable[[nn.Parameter], None]) -> None:
        """Calls `arrived`, a bound method, when a gradient has been accumulated."""
        hook = ArrivalHook(arrived)
        for parameter in self._parameters:
            if parameter.requires_grad and parameter not in self._handles:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._handles[parameter] = register(hook)

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
        number = self._number.get(parameter)
        if number is None:  # it is the optimizer's no more
            return None
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
        """Every gradient that is there counts, also one that code has written itself."""
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
                    f"clip, unscale or change gradients, then call step(). To go on after this "
                    f"error, call synchronize() and zero_grad() on all ranks"
                )
