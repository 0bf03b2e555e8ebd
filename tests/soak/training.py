"""A training under DDP whose weights every rank knows beforehand.

Inputs are whole numbers, and a step subtracts the sum of all ranks' gradients: so weights are whole
numbers, exact in float32, and tell which steps they contain. A rank keeps them from one group to
the next. A new group goes on from those of a rank that has come furthest: a step that one of them
has done is in its weights as a whole.
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
    """This rank's part, from one group to the next."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._model = Rows()
        self._step = 0

    def run(self, link: Link, _: random.Random, ends: Callable[[], bool]) -> None:
        """In a new group of all ranks, until it ends.

        Raises WrongResultError, and what operations raise.
        """
        self._agree()
        parallel = DistributedDataParallel(self._model, bucket_cap_mb=BUCKET_MB)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=1.0)
        for step in range(1, 2**62):
            optimizer.zero_grad()
            parallel(self._inputs()).backward()
            optimizer.step()
            self._step += 1
            self._compare()
            has_ended = ends()
            link.progress(step)
            if has_ended:
                return

    def _agree(self) -> None:
        furthest = torch.tensor(self._step * self._size + self._rank)
        dist.all_reduce(furthest, op=dist.ReduceOp.MAX)
        self._step, source = divmod(furthest.item(), self._size)
        for row in self._model.rows:
            dist.broadcast(row.data, source)
        self._compare()

    def _inputs(self) -> list[torch.Tensor]:
        """DDP divides the sum by the number of ranks."""
        more = self._step % STEPS_PERIOD + self._rank
        return [(_places(count) + more).float() * self._size for count in COUNTS]

    def _compare(self) -> None:
        periods, rest = divmod(self._step, STEPS_PERIOD)
        by_step = periods * sum(range(STEPS_PERIOD)) + sum(range(rest))
        by_rank = self._step * sum(range(self._size))
        for index, row in enumerate(self._model.rows):
            places = _places(len(row)) * (self._step * self._size)
            expected = -(places + self._size * by_step + by_rank).float()
            if torch.equal(row.detach(), expected):
                continue
            wrong = (row != expected).nonzero().flatten()
            first = int(wrong[0])
            raise WrongResultError(
                f"step {self._step}: {len(wrong)} of {len(row)} weights of tensor {index} are "
                f"wrong on rank {self._rank}: weight {first} is {row[first].item()}, expected "
                f"{expected[first].item()}"
            )


def _places(count: int) -> torch.Tensor:
    return torch.arange(count) % PLACES_PERIOD
