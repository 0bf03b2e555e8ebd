"""Random sequences of operations: dmlcomm gives what gloo gives, with one seed on every rank.

gloo takes one operation after the other; of dmlcomm's several run at once.
"""

import random

import pytest
import torch
import torch.distributed as dist

from helpers import run_ranks

SEEDS = 1
OPERATIONS_PER_SEED = 120
MOST_IN_FLIGHT = 6
DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8]
REDUCTIONS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]


class _Random:
    """The same choices on every rank; values that differ by rank and reduce exactly."""

    def __init__(self, seed, rank, n):
        self.choices = random.Random(seed)
        self.rank, self.n = rank, n
        self.generator = torch.Generator().manual_seed(1000 * seed + rank)

    def count(self):
        return self.choices.choice([0, 1, self.n, self.choices.randrange(2, 5000), 300_001])

    def dtype(self):
        return self.choices.choice(DTYPES)

    def reduction(self):
        return self.choices.choice(REDUCTIONS)

    def root(self):
        return self.choices.randrange(self.n)

    def tensor(self, count, dtype):
        return torch.randint(1, 3, (count,), generator=self.generator).to(dtype)


# Each operation starts, and returns what it has to wait for and the tensors that hold the result.


def _all_reduce(r, group):
    tensor = r.tensor(r.count(), r.dtype())
    return [dist.all_reduce(tensor, op=r.reduction(), group=group, async_op=True)], [tensor]


def _reduce(r, group):
    tensor, root = r.tensor(r.count(), r.dtype()), r.root()
    work = dist.reduce(tensor, root, op=r.reduction(), group=group, async_op=True)
    return [work], [tensor] if r.rank == root else []


def _broadcast(r, group):
    tensor = r.tensor(r.count(), r.dtype())
    return [dist.broadcast(tensor, r.root(), group=group, async_op=True)], [tensor]


def _all_gather(r, group):
    tensor = r.tensor(r.count(), r.dtype())
    outputs = [torch.zeros_like(tensor) for _ in range(r.n)]
    return [dist.all_gather(outputs, tensor, group=group, async_op=True)], outputs


def _gather(r, group):
    tensor, root = r.tensor(r.count(), r.dtype()), r.root()
    outputs = [torch.zeros_like(tensor) for _ in range(r.n)] if r.rank == root else None
    return [dist.gather(tensor, outputs, root, group=group, async_op=True)], outputs or []


def _scatter(r, group):
    count, dtype, root = r.count(), r.dtype(), r.root()
    parts = [r.tensor(count, dtype) for _ in range(r.n)]
    output = torch.zeros(count, dtype=dtype)
    given = parts if r.rank == root else None
    return [dist.scatter(output, given, root, group=group, async_op=True)], [output]


def _reduce_scatter(r, group):
    count, dtype = r.count(), r.dtype()
    output, given = torch.zeros(count, dtype=dtype), r.tensor(count * r.n, dtype)
    work = dist.reduce_scatter_tensor(
        output, given, op=dist.ReduceOp.SUM, group=group, async_op=True
    )
    return [work], [output]


def _all_to_all(r, group):
    dtype = r.dtype()
    rows = [[r.choices.randrange(200) for _ in range(r.n)] for _ in range(r.n)]
    sent, received = rows[r.rank], [rows[peer][r.rank] for peer in range(r.n)]
    output, given = torch.zeros(sum(received), dtype=dtype), r.tensor(sum(sent), dtype)
    work = dist.all_to_all_single(output, given, received, sent, group=group, async_op=True)
    return [work], [output]


def _ring_of_messages(r, group):
    tensor = r.tensor(r.count(), r.dtype())
    received = torch.zeros_like(tensor)
    tag = r.choices.randrange(5)
    works = [
        dist.isend(tensor, (r.rank + 1) % r.n, group=group, tag=tag),
        dist.irecv(received, (r.rank - 1) % r.n, group=group, tag=tag),
    ]
    return works, [received]


OPERATIONS = [
    _all_reduce,
    _all_reduce,
    _reduce,
    _broadcast,
    _all_gather,
    _gather,
    _scatter,
    _reduce_scatter,
    _all_to_all,
    _ring_of_messages,
]


def _run_sequence(seed, rank, n, group, most_in_flight):
    r = _Random(seed, rank, n)
    in_flight = []
    results = []
    for _ in range(OPERATIONS_PER_SEED):
        operation = r.choices.choice(OPERATIONS)
        works, tensors = operation(r, group)
        in_flight.append(works)
        results.append((operation.__name__, tensors))
        # In any order, of which each rank has its own.
        while len(in_flight) >= most_in_flight:
            for work in in_flight.pop(random.randrange(len(in_flight))):
                work.wait()
    for works in in_flight:
        for work in works:
            work.wait()
    return results


def _compare(rank, n, seeds):
    gloo = dist.new_group(backend="gloo")
    for seed in seeds:
        expected = _run_sequence(seed, rank, n, gloo, 1)
        actual = _run_sequence(seed, rank, n, None, MOST_IN_FLIGHT)
        for step, ((name, theirs), (_, ours)) in enumerate(zip(expected, actual, strict=True)):
            same = all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
            assert same, f"step {step} of seed {seed}: {name} differs from gloo"


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_same_results_as_gloo(world_size, transport):
    run_ranks(
        _compare,
        world_size,
        [10 * world_size + i for i in range(SEEDS)],
        env={"DMLCOMM_TRANSPORT": transport},
        deadline_s=240,
    )
