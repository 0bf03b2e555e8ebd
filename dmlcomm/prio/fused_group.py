"""Gradients that travel as one tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

# From this mean size of parameters on, a call for each costs less than another pass over all.
_COARSE_ELEMENTS = 16 * 1024


class FusedGroup:
    """Parameters of one type and device, and a buffer for their gradients.

    The buffer has a flag per parameter behind the gradients. A rank with a gradient sets it, so the
    sum of the flags tells whether any rank has one.

    Args:
        numbers: of the parameters, among all of the optimizer.
        parameters: not empty.
        world_size: of the process group: the buffer can be cut into as many equal parts.

    Attributes:
        ticket: of its communication.
        is_early: its weights are needed before the next forward pass begins.
        works: communication on its way.
    """

    def __init__(
        self, numbers: Sequence[int], parameters: Sequence[nn.Parameter], world_size: int
    ) -> None:
        self.numbers = list(numbers)
        self.parameters = list(parameters)
        self.ticket = 0
        self.is_early = False
        self.works: list[Any] = []
        self._world_size = world_size
        self._length = sum(p.numel() for p in parameters)
        padded = -(-(self._length + len(parameters)) // world_size) * world_size
        first = parameters[0]
        self.buffer = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.part = torch.zeros(padded // world_size, dtype=first.dtype, device=first.device)
        self._views = _views_of(self.buffer, parameters)
        self._flags = self.buffer[self._length : self._length + len(parameters)]
        self._used: list[bool] | None = None

    @torch.no_grad()
    def fill(self, has_gradient: Sequence[bool]) -> None:
        """Puts this rank's gradients in, divided by the number of ranks as DDP does it.

        Args:
            has_gradient: by parameter of the optimizer; one without contributes zeros.
        """
        own = [has_gradient[number] for number in self.numbers]
        if not all(own):
            self.buffer.zero_()
        with_gradient = [i for i, has in enumerate(own) if has]
        views = [self._views[i] for i in with_gradient]
        gradients: Any = [self.parameters[i].grad for i in with_gradient]
        # The reducer of DDP multiplies by the inverse: a division would give other bits.
        factor = 1.0 / self._world_size
        if self._length >= _COARSE_ELEMENTS * len(self.parameters):
            for view, gradient in zip(views, gradients, strict=True):
                torch.mul(gradient, factor, out=view)
        elif views:
            torch._foreach_copy_(views, gradients)
            self.buffer[: self._length].mul_(factor)
        self._flags.copy_(torch.tensor(own))
        self._used = None

    def wait(self) -> None:
        """Until the buffer has the averages."""
        for work in self.works:
            work.wait()
        self.works = []

    def averages(self) -> dict[nn.Parameter, torch.Tensor]:
        """Averaged gradient by parameter, without those for which no rank has one. After `wait`."""
        if self._used is None:
            self._used = (self._flags != 0).tolist()
        return {
            parameter: view
            for parameter, view, used in zip(self.parameters, self._views, self._used, strict=True)
            if used
        }

    @torch.no_grad()
    def write_gradients(self) -> None:
        """Puts the averages into the parameters' gradients. After `wait`."""
        views, gradients = [], []
        for parameter, view in self.averages().items():
            if parameter.grad is None:
                parameter.grad = view.clone()
            else:
                views.append(view)
                gradients.append(parameter.grad)
        if views:
            torch._foreach_copy_(gradients, views)


def _views_of(buffer: torch.Tensor, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Like the parameters in shape, and in layout if it leaves no gaps."""
    views, begin = [], 0
    for parameter in parameters:
        part = buffer[begin : begin + parameter.numel()]
        strides = torch.empty_like(parameter, device="meta").stride()
        views.append(part.as_strided(parameter.size(), strides))
        begin += parameter.numel()
    return views
