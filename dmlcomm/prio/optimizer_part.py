"""The user's optimizer, for some of its parameters."""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

Options = list[dict[str, Any]]


def options_of(optimizer: torch.optim.Optimizer) -> Options:
    """The options of each of its parameter groups, as they are now."""
    return [
        {
            # A rate that is a tensor is changed in place by a scheduler.
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


class OptimizerPart:
    """A copy of the user's optimizer that updates some of its parameters, with the same state.

    Args:
        optimizer: the user's; its class is the class of the copy.
        parameters: those that this part updates.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
    ) -> None:
        self._optimizer = optimizer
        self._part = object.__new__(type(optimizer))
        self._part.__dict__.update(optimizer.__dict__)
        # A scheduler replaces `step` of the optimizer; the user's hooks run once per step.
        self._part.__dict__.pop("step", None)
        self._part._optimizer_step_pre_hooks = OrderedDict()
        self._part._optimizer_step_post_hooks = OrderedDict()
        own = set(parameters)
        self._parameters = [
            [parameter for parameter in group["params"] if parameter in own]
            for group in optimizer.param_groups
        ]

    def step(self, options: Options, averages: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """One update.

        Args:
            options: of all parameter groups, see `options_of`.
            averages: gradients; parameters without one are left as they are.

        Raises:
            RuntimeError: the optimizer keeps state in its parameter groups.
        """
        part = self._part
        part.state = self._optimizer.state
        groups = [
            {**own, "params": [p for p in parameters if p in averages]}
            for own, parameters in zip(options, self._parameters, strict=True)
        ]
        part.param_groups = [group for group in groups if group["params"]]
        if not part.param_groups:
            return
        local = {parameter: parameter.grad for parameter in averages}
        with _as_in_a_step(next(iter(averages)).device.type):
            for parameter, average in averages.items():
                parameter.grad = average
            try:
                part.step()
            finally:
                for parameter, gradient in local.items():
                    parameter.grad = gradient
        for before, after in zip(options, groups, strict=True):
            if any(after.get(key) is not value for key, value in before.items()):
                raise RuntimeError(
                    f"{type(part).__name__} changes its param_groups in step(), so it cannot "
                    f'update parameters one after the other: use schedule="plain"'
                )


@contextlib.contextmanager
def _as_in_a_step(device_type: str) -> Iterator[None]:
    """An update may run inside a forward pass: what is set for that must not reach it."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled(device_type):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        stack.enter_context(torch.no_grad())
        yield
