"""Gradients that travel as one tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

# From this mean size of parameters on, a call for each costs less than another pass over all. From
# this size on, it is worth a call in Python when its gradient comes.
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
        is_large: by place, whether a gradient is taken as it comes, by a call of its own. Others
            follow together in `fill`.
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
        # The reducer of DDP multiplies by the inverse: a division would give other bits.
        self._factor = 1.0 / world_size
        self._length = sum(p.numel() for p in parameters)
        is_coarse = self._length >= _COARSE_ELEMENTS * len(parameters)
        self.is_large = [is_coarse and p.numel() >= _COARSE_ELEMENTS for p in parameters]
        padded = -(-(self._length + len(parameters)) // world_size) * world_size
        first = parameters[0]
        self.buffer = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.part = torch.zeros(padded // world_size, dtype=first.dtype, device=first.device)
        self._views = _views_of(self.buffer, parameters)
        self._flags = self.buffer[self._length : self._length + len(parameters)]
        self._all = dict(zip(self.parameters, self._views, strict=True))
        self._taken: set[int] = set()  # places whose gradients are in the buffer already
        self._averages: dict[nn.Parameter, torch.Tensor] | None = None

    def large_numbers(self) -> list[int]:
        """The parameters whose gradients are taken as they come."""
        return [number for number, large in zip(self.numbers, self.is_large, strict=True) if large]

    def take(self, place: int) -> None:
        """Puts the gradient of a parameter in, divided by the number of ranks as DDP does it.

        Before `fill`, one that is large: as long as caches have the gradient.

        Args:
            place: of the parameter in this group.
        """
        gradient = self.parameters[place].grad
        assert gradient is not None
        if gradient.requires_grad:  # of a pass that makes a graph
            gradient = gradient.detach()
        torch.mul(gradient, self._factor, out=self._views[place])
        self._taken.add(place)

    @torch.no_grad()
    def fill(self, has_gradient: Sequence[bool]) -> None:
        """Puts in all of this rank's gradients that were not taken, and the flags.

        Args:
            has_gradient: by parameter of the optimizer; one without contributes zeros.
        """
        own = [has_gradient[number] for number in self.numbers]
        if all(own):
            self._flags.fill_(1)
        else:
            torch._foreach_zero_([self._views[i] for i, has in enumerate(own) if not has])
            self._flags.copy_(torch.tensor(own))
        taken = self._taken
        places = [i for i, has in enumerate(own) if has and i not in taken]
        if places:
            gradients: Any = [self.parameters[i].grad for i in places]
            views = [self._views[i] for i in places]
            torch._foreach_copy_(views, gradients)
            if any(self.is_large):
                torch._foreach_mul_(views, self._factor)
            else:  # one pass over all of them
                self.buffer[: self._length].mul_(self._factor)
        self._taken.clear()
        self._averages = None

    def wait(self) -> None:
        """Until the buffer has the averages."""
        for work in self.works:
            work.wait()
        self.works = []

    def averages(self) -> dict[nn.Parameter, torch.Tensor]:
        """Averaged gradient by parameter, without those for which no rank has one. After `wait`."""
        if self._averages is None:
            used = (self._flags != 0).tolist()
            self._averages = self._all if all(used) else _only(self._all, used)
        return self._averages

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


def _only(
    averages: dict[nn.Parameter, torch.Tensor], used: Sequence[bool]
) -> dict[nn.Parameter, torch.Tensor]:
    return {p: view for (p, view), is_used in zip(averages.items(), used, strict=True) if is_used}


def _views_of(buffer: torch.Tensor, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Like the parameters in shape, and in layout if it leaves no gaps."""
    views, begin = [], 0
    for parameter in parameters:
        part = buffer[begin : begin + parameter.numel()]
        strides = torch.empty_like(parameter, device="meta").stride()
        views.append(part.as_strided(parameter.size(), strides))
        begin += parameter.numel()
    return views
