"""The operations: each is a name and four small functions over one case's buffers.

Sizes follow nccl-tests: S is the larger of a rank's input and output (all_gather: the output;
reduce_scatter, all_to_all, scatter: the input). Inputs are small whole numbers, so that the sum
over any number of ranks up to 64 is exact in every float type and in every order.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Inputs repeat a table of this many values below 5. A prime, so that no block of a transport is a
# multiple of it and a misplaced block shows.
TABLE_LENGTH = 4093
ROOT = 0


@dataclass(frozen=True)
class Case:
    """What one rank measures: ``count`` elements of size S."""

    operation: str
    size_bytes: int
    dtype: torch.dtype
    num_ranks: int

    @property
    def count(self) -> int:
        """Elements of S; whole pieces, so at least one element for every rank."""
        pieces = max(1, self.size_bytes // self.dtype.itemsize // self.num_ranks)
        return pieces * self.num_ranks


@dataclass
class Buffers:
    """One rank's tensors; the same tensor twice for an operation in place, None where unused."""

    input: torch.Tensor | None
    output: torch.Tensor | None


def values(case: Case, rank: int, seed: int, begin: int, end: int) -> torch.Tensor:
    """Elements [begin, end) of what ``rank`` puts in."""
    index = torch.arange(TABLE_LENGTH)
    return _tiled(((index * index + 3 * rank + seed) % 5).to(case.dtype), begin, end)


def sum_of_values(case: Case, seed: int, begin: int, end: int) -> torch.Tensor:
    """Elements [begin, end) of the sum over all ranks."""
    tables = [values(case, r, seed, 0, TABLE_LENGTH).double() for r in range(case.num_ranks)]
    return _tiled(sum(tables).to(case.dtype), begin, end)


def _tiled(table: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """Elements [begin, end) of the table, repeated without end."""
    shifted = table.roll(-(begin % TABLE_LENGTH))
    return shifted.repeat(-(-(end - begin) // TABLE_LENGTH))[: end - begin]


@dataclass(frozen=True)
class Operation:
    """``wire_factor(n)``: bytes that must at least cross to or from the busiest of n ranks, divided
    by S; busbw = algbw x wire_factor."""

    buffers: Callable[[Case, int], Buffers]
    run: Callable[[Buffers, Case, dist.ProcessGroup], None]
    expected: Callable[[Case, int, int], torch.Tensor | None]
    wire_factor: Callable[[int], float]
    redop: str = "none"

    def fill(self, buffers: Buffers, case: Case, rank: int, seed: int) -> None:
        """Fresh inputs, and an output that no right result contains."""
        if buffers.output is not None:
            buffers.output.fill_(99)
        if buffers.input is not None:
            buffers.input.copy_(values(case, rank, seed, 0, buffers.input.numel()))

    def count_wrong(self, buffers: Buffers, case: Case, rank: int, seed: int) -> int:
        expected = self.expected(case, rank, seed)
        return 0 if expected is None else int((buffers.output != expected).sum())


def _in_place(case: Case, rank: int) -> Buffers:
    tensor = torch.empty(case.count, dtype=case.dtype)
    return Buffers(tensor, tensor)


def _sized(case: Case, input_count: int, output_count: int) -> Buffers:
    def tensor(count):
        return torch.empty(count, dtype=case.dtype) if count else None

    return Buffers(tensor(input_count), tensor(output_count))


def _piece(case: Case, rank: int) -> tuple[int, int]:
    length = case.count // case.num_ranks
    return rank * length, (rank + 1) * length


def _from_every_rank(case: Case, seed: int, begin: int, end: int) -> torch.Tensor:
    return torch.cat([values(case, r, seed, begin, end) for r in range(case.num_ranks)])


def _only_on_root(rank: int, make: Callable[[], torch.Tensor]) -> torch.Tensor | None:
    return make() if rank == ROOT else None


def _gather(buffers: Buffers, case: Case, group: dist.ProcessGroup) -> None:
    pieces = None if buffers.output is None else list(buffers.output.chunk(case.num_ranks))
    dist.gather(buffers.input, pieces, ROOT, group=group)


def _scatter(buffers: Buffers, case: Case, group: dist.ProcessGroup) -> None:
    pieces = None if buffers.input is None else list(buffers.input.chunk(case.num_ranks))
    dist.scatter(buffers.output, pieces, ROOT, group=group)


def _others(num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks


OPERATIONS = {
    "all_reduce": Operation(
        buffers=_in_place,
        run=lambda b, case, group: dist.all_reduce(b.output, group=group),
        expected=lambda case, rank, seed: sum_of_values(case, seed, 0, case.count),
        wire_factor=lambda n: 2 * _others(n),
        redop="sum",
    ),
    "reduce": Operation(
        buffers=_in_place,
        run=lambda b, case, group: dist.reduce(b.output, ROOT, group=group),
        expected=lambda case, rank, seed: _only_on_root(
            rank, lambda: sum_of_values(case, seed, 0, case.count)
        ),
        wire_factor=lambda n: 1.0,
        redop="sum",
    ),
    "broadcast": Operation(
        buffers=_in_place,
        run=lambda b, case, group: dist.broadcast(b.output, ROOT, group=group),
        expected=lambda case, rank, seed: values(case, ROOT, seed, 0, case.count),
        wire_factor=lambda n: 1.0,
    ),
    "all_gather": Operation(
        buffers=lambda case, rank: _sized(case, case.count // case.num_ranks, case.count),
        run=lambda b, case, group: dist.all_gather_into_tensor(b.output, b.input, group=group),
        expected=lambda case, rank, seed: _from_every_rank(
            case, seed, 0, case.count // case.num_ranks
        ),
        wire_factor=_others,
    ),
    "reduce_scatter": Operation(
        buffers=lambda case, rank: _sized(case, case.count, case.count // case.num_ranks),
        run=lambda b, case, group: dist.reduce_scatter_tensor(b.output, b.input, group=group),
        expected=lambda case, rank, seed: sum_of_values(case, seed, *_piece(case, rank)),
        wire_factor=_others,
        redop="sum",
    ),
    "all_to_all": Operation(
        buffers=lambda case, rank: _sized(case, case.count, case.count),
        run=lambda b, case, group: dist.all_to_all_single(b.output, b.input, group=group),
        expected=lambda case, rank, seed: _from_every_rank(case, seed, *_piece(case, rank)),
        wire_factor=_others,
    ),
    "gather": Operation(
        buffers=lambda case, rank: _sized(
            case, case.count // case.num_ranks, case.count if rank == ROOT else 0
        ),
        run=_gather,
        expected=lambda case, rank, seed: _only_on_root(
            rank, lambda: _from_every_rank(case, seed, 0, case.count // case.num_ranks)
        ),
        wire_factor=_others,
    ),
    "scatter": Operation(
        buffers=lambda case, rank: _sized(
            case, case.count if rank == ROOT else 0, case.count // case.num_ranks
        ),
        run=_scatter,
        expected=lambda case, rank, seed: values(case, ROOT, seed, *_piece(case, rank)),
        wire_factor=_others,
    ),
}
