"""A training under DDP whose weights every rank knows beforehand.

Inputs are whole numbers, and a step subtracts the sum of all ranks' gradients: so weights are whole
numbers, exact in float32, and tell which steps they contain. A member keeps them from one group to
the next, which may have other members. A new group goes on from those of one that has come
furthest: a step that one of them has done is in its weights as a whole.
"""

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from soak.link import Link
from soak.operations import WrongResultError

# Several buckets, of which some are alone on a rail and some are small.
COUNTS = (7, 1000, 70_001, 200_000, 3)
BUCKET_MB = 0.25
# Gradients repeat after so many steps, and so many elements.
STEPS_PERIOD, PLACES_PERIOD = 7, 13


class Rows(torch.nn.Module):
    """Whose gradients are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(n)) for n in COUNTS)

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        products = [(row * one).sum() for row, one in zip(self.rows, inputs, strict=True)]
        return torch.stack(products).sum()


class Training:
    """This member's part, from one group to the next.

    Args:
        number: of the member, whatever its rank is.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._model = Rows()
        self._step = 0
        # Weights are - (places * _times + _more), whoever has taken part in which steps.
        self._times = self._more = 0

    def run(self, link: Link, _: random.Random, ends: Callable[[], bool]) -> None:
        """In a new group, until it ends.

        Raises WrongResultError, and what operations raise.
        """
        members = self._agree()
        parallel = DistributedDataParallel(self._model, bucket_cap_mb=BUCKET_MB)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=1.0)
        for step in range(1, 2**62):
            optimizer.zero_grad()
            parallel(self._inputs(len(members))).backward()
            optimizer.step()
            self._note(members)
            self._compare()
            has_ended = ends()
            link.progress(step)
            if has_ended:
                return

    def _agree(self) -> list[int]:
        """The numbers of all members, whose weights are equal then."""
        size = dist.get_world_size()
        members = torch.empty(size, dtype=torch.int64)
        dist.all_gather_into_tensor(members, torch.tensor([self._number]))
        furthest = torch.tensor(self._step * size + dist.get_rank())
        dist.all_reduce(furthest, op=dist.ReduceOp.MAX)
        source = furthest.item() % size
        contents = torch.tensor([self._step, self._times, self._more])
        dist.broadcast(contents, source)
        self._step, self._times, self._more = contents.tolist()
        for row in self._model.rows:
            dist.broadcast(row.data, source)
        self._compare()
        return members.tolist()

    def _inputs(self, num_members: int) -> list[torch.Tensor]:
        """DDP divides the sum by the number of ranks."""
        more = self._step % STEPS_PERIOD + self._number
        return [(_places(count) + more).float() * num_members for count in COUNTS]

    def _note(self, members: list[int]) -> None:
        """The step that these have done."""
        self._times += len(members)
        self._more += len(members) * (self._step % STEPS_PERIOD) + sum(members)
        self._step += 1

    def _compare(self) -> None:
        for index, row in enumerate(self._model.rows):
            expected = -(_places(len(row)) * self._times + self._more).float()
            if torch.equal(row.detach(), expected):
                continue
            wrong = (row != expected).nonzero().flatten()
            first = int(wrong[0])
            raise WrongResultError(
                f"step {self._step}: {len(wrong)} of {len(row)} weights of tensor {index} are "
                f"wrong on rank {self._number}: weight {first} is {row[first].item()}, expected "
                f"{expected[first].item()}"
            )


def _places(count: int) -> torch.Tensor:
    return torch.arange(count) % PLACES_PERIOD
