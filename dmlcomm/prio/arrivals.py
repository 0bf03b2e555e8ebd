"""Which gradients of a step are there."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from dmlcomm.prio.equality import are_equal

# Which gradients of a step are compared, in their order: of the last layers and of the first ones.
# To compare each would take as long as all the rest.
_SAMPLED = frozenset(4**power for power in range(12))
_SAMPLE_ELEMENTS = 1024


class _Log(list[nn.Parameter]):
    """Parameters whose gradients have been accumulated.

    Its `append` is their hook: a function in Python would take longer than DDP does for all.
    """


def is_watched(parameter: torch.Tensor) -> bool:
    """Whether there are `Arrivals` that count its gradients."""
    hooks = parameter._post_accumulate_grad_hooks or {}
    return any(isinstance(getattr(hook, "__self__", None), _Log) for hook in hooks.values())


class Arrivals:
    """Counts the backward passes of each parameter, and sees whether its gradient is changed.

    It watches from the beginning until `unwatch`, or until nobody has it any more: the garbage
    collector does not see hooks of tensors, so these keep nothing alive but parameters.

    Args:
        parameters: of the optimizer, in its order.
        name_of: of a parameter, for errors.
        passes: backward passes per step.
        came: parameters whose gradients have been accumulated already.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        name_of: Callable[[nn.Parameter], str],
        passes: int,
        came: Iterable[nn.Parameter] = (),
    ) -> None:
        self.passes = passes
        self._parameters = list(parameters)
        self._name_of = name_of
        # By identity: the hash of a tensor is a function in Python.
        self._number = {id(parameter): i for i, parameter in enumerate(parameters)}
        self._log = _Log()
        self._calls: list[Any] = []
        self.reset()
        self._log.extend(came)
        append = self._log.append
        logging = [_register(parameter, append) for parameter in parameters]
        self._end = weakref.finalize(self, _stop, logging, self._log)
        self._end.atexit = False

    def reset(self) -> None:
        """For the next step."""
        count = len(self._parameters)
        self._counts = [0] * count
        self.has_gradient = [False] * count
        # The last passes of parameters, in order: gradient, and its version.
        self._complete: dict[int, tuple[torch.Tensor, int]] = {}
        # Of those that are `_SAMPLED`: elements, and a copy of them.
        self._samples: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.drop_new()

    def drop_new(self) -> None:
        """Gradients that were not taken do not count."""
        self._log.clear()

    def call(self, arrived: Callable[[nn.Parameter], None], numbers: Iterable[int]) -> None:
        """Calls `arrived`, a bound method, when these parameters' gradients are accumulated."""
        self._end_calls()
        method: Any = weakref.WeakMethod(arrived)

        def call(parameter: nn.Parameter) -> None:
            function = method()
            if function is not None:
                function(parameter)

        self._calls = [_register(self._parameters[number], call) for number in numbers]

    def unwatch(self) -> list[nn.Parameter]:
        """Ends watching.

        Returns:
            The parameters whose gradients were not taken.
        """
        came = list(self._log)
        self._end_calls()
        self._end()
        return came

    @property
    def has_new(self) -> bool:
        """Whether there are gradients to `take`."""
        return bool(self._log)

    @property
    def order(self) -> list[int]:
        """Parameters whose last pass is done, by number, in the order of their gradients."""
        return list(self._complete)

    def take(self, is_local: bool) -> list[int]:
        """Counts the gradients that have been accumulated since it was called before.

        Args:
            is_local: these passes are not counted, as their gradients are not sent.

        Returns:
            The parameters whose last pass it was, by number, in their order.
        """
        came = list(self._log)
        del self._log[: len(came)]  # threads of other devices may have added some
        taken: list[int] = []
        numbers, counts, complete = self._number, self._counts, self._complete
        dense = torch.strided
        for parameter in came:
            number = numbers.get(id(parameter))
            gradient = parameter.grad
            # It is the optimizer's no more, or another hook has taken the gradient.
            if number is None or gradient is None:
                continue
            if gradient.layout is not dense:
                raise RuntimeError(
                    f"{self._name_of(parameter)} has a sparse gradient: not supported"
                )
            self.has_gradient[number] = True
            if is_local and number not in complete:
                continue
            counts[number] += 1
            if counts[number] > self.passes:
                self._refuse(number)
            if counts[number] == self.passes:
                complete[number] = (gradient, gradient._version)
                taken.append(number)
                if len(complete) in _SAMPLED:
                    elements = _some_of(gradient.detach())
                    self._samples[number] = elements, elements.clone()
        return taken

    def take_all(self) -> None:
        """Every gradient that is there counts, also one that code has written itself."""
        self.take_present(range(len(self._parameters)))

    def take_present(self, numbers: Iterable[int]) -> None:
        """As `take_all`, of some parameters."""
        for number in numbers:
            self.has_gradient[number] = self._parameters[number].grad is not None

    def check_unchanged(self) -> None:
        """The gradients that were sent are still the parameters' gradients.

        Raises:
            RuntimeError: one is not. Changes of which torch keeps no count (`GradScaler.unscale_`,
                `.data`, NumPy) are seen in samples only.
        """
        parameters = self._parameters
        for number, (gradient, version) in self._complete.items():
            if gradient._version != version or parameters[number].grad is not gradient:
                self._refuse_change(number)
        for number, (elements, copy) in self._samples.items():
            if not are_equal(elements, copy):
                self._refuse_change(number)

    def _refuse_change(self, number: int) -> NoReturn:
        raise RuntimeError(
            f"the gradient of {self._name_of(self._parameters[number])} was changed after "
            f"backward, when it had been sent already. Call synchronize() of the optimizer first, "
            f"then clip, unscale or change gradients, then call step(). To go on after this "
            f"error, call synchronize() and zero_grad() on all ranks"
        )

    def _refuse(self, number: int) -> NoReturn:
        raise RuntimeError(
            f"{self._name_of(self._parameters[number])} has a gradient from "
            f"{self._counts[number]} backward passes, but backward_passes_per_step is "
            f"{self.passes}: call step() after as many, or use no_sync() for those before the "
            f"last one, and for those of another model's loss that go through this one"
        )

    def _end_calls(self) -> None:
        for handle in self._calls:
            handle.remove()
        self._calls = []


def _register(parameter: nn.Parameter, hook: Callable[[nn.Parameter], None]) -> Any:
    register: Any = parameter.register_post_accumulate_grad_hook
    return register(hook)


def _stop(handles: Iterable[Any], log: _Log) -> None:
    for handle in handles:
        handle.remove()
    log.clear()


def _some_of(gradient: torch.Tensor) -> torch.Tensor:
    """A view of up to `_SAMPLE_ELEMENTS` elements, whatever the layout."""
    while gradient.numel() > _SAMPLE_ELEMENTS:
        gradient = gradient[0] if gradient.dim() > 1 else gradient[:_SAMPLE_ELEMENTS]
    return gradient
