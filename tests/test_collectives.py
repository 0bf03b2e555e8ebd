"""Every collective x element type x operator x ranks x transport, against expected values.

One group of processes per (transport, number of ranks) makes all checks in a row; each check is a
test that looks at its own part of what came out.
"""

import functools
import traceback

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import Expectations, RanksFailedError, run_ranks
from helpers.values import (
    COMPLEX,
    FLOATS,
    Op,
    cases_of,
    counts_of,
    ops_of,
    reduced,
    roots_of,
    value,
)

WORLD_SIZES = [1, 2, 3, 4, 5, 8]
TRANSPORTS = ["auto", "tcp"]


def _call(function, *args, turn, **kwargs):
    """Every other call is asynchronous."""
    if turn % 2:
        function(*args, async_op=True, **kwargs).wait()
    else:
        function(*args, **kwargs)


def all_reduce(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        for op in ops_of(dtype):
            tensor = value(rank, count, dtype)
            _call(dist.all_reduce, tensor, op=op, turn=turn)
            expect.equal(tensor, reduced(op, n, count, dtype), op, dtype, count)


def all_reduce_large(rank, n, expect):
    """Beyond the largest size that goes through the shared board, and over TCP in blocks."""
    for dtype, count in ((torch.float32, 1_100_001), (torch.bfloat16, 2_100_001)):
        for op in (Op.SUM, Op.MAX, Op.AVG):
            tensor = value(rank, count, dtype)
            dist.all_reduce(tensor, op=op)
            expect.equal(tensor, reduced(op, n, count, dtype), op, dtype)


def all_reduce_premultiplied(rank, n, expect):
    for dtype in [*FLOATS, *COMPLEX]:
        factor = torch.tensor(0.5) if dtype == torch.float64 else 0.5
        op = dist._make_nccl_premul_sum(factor)
        for count in counts_of(n):
            tensor = value(rank, count, dtype)
            options = dist.AllreduceOptions()
            options.reduceOp = op
            dist.group.WORLD.allreduce([tensor], options).wait()
            expected = reduced(Op.SUM, n, count, torch.complex128 if dtype in COMPLEX else dtype)
            expect.equal(tensor, (expected * 0.5).to(dtype), "premul", dtype, count)


def all_reduce_strided(rank, n, expect):
    base = value(rank, 12, torch.float32).reshape(3, 4)
    transposed = base.clone().t()
    dist.all_reduce(transposed)
    expect.equal(transposed, reduced(Op.SUM, n, 12, torch.float32).reshape(3, 4).t(), "transposed")
    work = dist.all_reduce(every_other := value(rank, 11, torch.int32)[::2], async_op=True)
    work.wait()
    expect.equal(every_other, reduced(Op.SUM, n, 11, torch.int32)[::2], "every other")
    image = value(rank, 48, torch.float32).reshape(1, 3, 4, 4)
    image = image.to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    expect.equal(image, reduced(Op.SUM, n, 48, torch.float32).reshape(1, 3, 4, 4), "channels last")


def all_reduce_coalesced(rank, n, expect):
    for counts, dtypes in [
        ([3, 0, 5, 1], [torch.float32]),
        ([3, 5], [torch.float32, torch.int64]),
        ([300_001, 200_003], [torch.float32]),
    ]:
        kinds = [dtypes[i % len(dtypes)] for i in range(len(counts))]
        tensors = [value(rank, c, d) for c, d in zip(counts, kinds, strict=True)]
        dist.group.WORLD.allreduce_coalesced(tensors).wait()  # torch.distributed refuses a mixture
        for tensor, count, dtype in zip(tensors, counts, kinds, strict=True):
            expect.equal(tensor, reduced(Op.SUM, n, count, dtype), "coalesced", dtype, count)
    strided = [value(rank, 12, torch.float32).reshape(3, 4).t(), value(rank, 3, torch.float32)]
    dist.all_reduce_coalesced(strided, op=Op.MAX)
    expected = reduced(Op.MAX, n, 12, torch.float32).reshape(3, 4).t()
    expect.equal(strided[0], expected, "coalesced strided")


def all_reduce_sparse(rank, n, expect):
    indices = torch.tensor([[0, rank % 3, 2], [1, 0, rank % 4]])
    values = torch.arange(6, dtype=torch.float64).reshape(3, 2) + rank
    expected = sum(
        torch.sparse_coo_tensor(
            torch.tensor([[0, r % 3, 2], [1, 0, r % 4]]),
            torch.arange(6, dtype=torch.float64).reshape(3, 2) + r,
            (3, 4, 2),
        ).to_dense()
        for r in range(n)
    )
    for asynchronous in (False, True):
        tensor = torch.sparse_coo_tensor(indices, values, (3, 4, 2))
        work = dist.all_reduce(tensor, async_op=asynchronous)
        if asynchronous:
            work.wait()
        expect.equal(tensor.to_dense(), expected, "sparse", asynchronous)
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (5,))
    if rank == 0:
        empty = torch.sparse_coo_tensor([[2]], [7.0], (5,))
    dist.all_reduce(empty)
    expect.equal(empty.to_dense(), torch.tensor([0.0, 0, 7, 0, 0]), "sparse, empty but on one rank")


def reduce(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        op = ops_of(dtype)[turn % len(ops_of(dtype))]
        for root in roots_of(n):
            tensor = value(rank, count, dtype)
            _call(dist.reduce, tensor, dst=root, op=op, turn=turn)
            result = reduced(op, n, count, dtype)
            expected = result if rank == root else value(rank, count, dtype)
            expect.equal(tensor, expected, op, "to", root, dtype, count)
    strided = value(rank, 12, torch.float32).reshape(3, 4).t()
    dist.reduce(strided, dst=0)
    if rank == 0:
        expected = reduced(Op.SUM, n, 12, torch.float32).reshape(3, 4).t()
        expect.equal(strided, expected, "reduce strided")


def broadcast(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        for root in roots_of(n):
            tensor = value(rank, count, dtype)
            _call(dist.broadcast, tensor, src=root, turn=turn)
            expect.equal(tensor, value(root, count, dtype), "from", root, dtype, count)
    strided = value(rank, 12, torch.float32).reshape(3, 4).t()
    dist.broadcast(strided, src=n - 1)
    expected = value(n - 1, 12, torch.float32).reshape(3, 4).t()
    expect.equal(strided, expected, "broadcast strided")


def all_gather(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        outputs = [torch.zeros(count, dtype=dtype) for _ in range(n)]
        _call(dist.all_gather, outputs, value(rank, count, dtype), turn=turn)
        for r in range(n):
            expect.equal(outputs[r], value(r, count, dtype), "of rank", r, dtype, count)


def all_gather_uneven(rank, n, expect):
    outputs = [torch.zeros(2 * r) for r in range(n)]
    dist.all_gather(outputs, value(rank, 2 * rank, torch.float32))
    for r in range(n):
        expect.equal(outputs[r], value(r, 2 * r, torch.float32), "uneven, of rank", r)
    strided = [torch.zeros(4, 3).t() for _ in range(n)]
    dist.all_gather(strided, value(rank, 12, torch.float32).reshape(4, 3).t())
    for r in range(n):
        expect.equal(strided[r], value(r, 12, torch.float32).reshape(4, 3).t(), "strided", r)


def all_gather_into_tensor(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        output = torch.zeros(n * count, dtype=dtype)
        _call(dist.all_gather_into_tensor, output, value(rank, count, dtype), turn=turn)
        expected = torch.stack([value(r, count, dtype) for r in range(n)]).flatten()
        expect.equal(output, expected, dtype, count)
    stacked = torch.zeros(n, 3)
    dist.all_gather_into_tensor(stacked, value(rank, 3, torch.float32))
    expect.equal(stacked, torch.stack([value(r, 3, torch.float32) for r in range(n)]), "stacked")


def gather(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        for root in roots_of(n):
            outputs = [torch.zeros(count, dtype=dtype) for _ in range(n)]
            target = outputs if rank == root else None
            _call(dist.gather, value(rank, count, dtype), target, dst=root, turn=turn)
            for r in range(n) if rank == root else ():
                expect.equal(outputs[r], value(r, count, dtype), "to", root, dtype, count)


def scatter(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        for root in roots_of(n):
            output = torch.zeros(count, dtype=dtype)
            inputs = [value(10 * root + r, count, dtype) for r in range(n)]
            source = inputs if rank == root else None
            _call(dist.scatter, output, source, src=root, turn=turn)
            expect.equal(output, value(10 * root + rank, count, dtype), root, dtype, count)


def reduce_scatter(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        if dtype in COMPLEX:
            continue
        for op in ops_of(dtype):
            parts = (
                list(value(rank, n * count, dtype).chunk(n))
                if count
                else [torch.empty(0, dtype=dtype) for _ in range(n)]
            )
            output = torch.zeros(count, dtype=dtype)
            _call(dist.reduce_scatter, output, parts, op=op, turn=turn)
            expected = reduced(op, n, n * count, dtype)[rank * count : (rank + 1) * count]
            expect.equal(output, expected, op, dtype, count)


def reduce_scatter_uneven(rank, n, expect):
    sizes = [3 * r + (r % 2) for r in range(n)]
    inputs = [value(rank, size, torch.float32) for size in sizes]
    output = torch.zeros(sizes[rank])
    dist.reduce_scatter(output, inputs)
    expect.equal(output, reduced(Op.SUM, n, sizes[rank], torch.float32), "uneven")
    expect.equal(inputs[0], value(rank, sizes[0], torch.float32), "input is preserved")


def reduce_scatter_tensor(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        for op in ops_of(dtype)[:2]:
            output = torch.zeros(count, dtype=dtype)
            source = value(rank, n * count, dtype)
            _call(dist.reduce_scatter_tensor, output, source, op=op, turn=turn)
            expected = reduced(op, n, n * count, dtype)[rank * count : (rank + 1) * count]
            expect.equal(output, expected, op, dtype, count)
            expect.equal(source, value(rank, n * count, dtype), "input is preserved")
    output = torch.zeros(5)
    op = dist._make_nccl_premul_sum(2.0)
    dist.reduce_scatter_tensor(output, source := value(rank, n * 5, torch.float32), op=op)
    expected = 2 * reduced(Op.SUM, n, n * 5, torch.float32)[rank * 5 : rank * 5 + 5]
    expect.equal(output, expected, "premultiplied")
    expect.equal(source, value(rank, n * 5, torch.float32), "input is preserved")


def all_to_all(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        outputs = [torch.zeros(count, dtype=dtype) for _ in range(n)]
        inputs = [value(10 * rank + r, count, dtype) for r in range(n)]
        _call(dist.all_to_all, outputs, inputs, turn=turn)
        for r in range(n):
            expect.equal(outputs[r], value(10 * r + rank, count, dtype), "from", r, dtype, count)
    outputs = [torch.zeros(r + 2 * rank) for r in range(n)]
    dist.all_to_all(outputs, [value(rank, rank + 2 * r, torch.float32) for r in range(n)])
    for r in range(n):
        expect.equal(outputs[r], value(r, r + 2 * rank, torch.float32), "uneven, from", r)


def all_to_all_single(rank, n, expect):
    for turn, (dtype, count) in enumerate(cases_of(n)):
        output = torch.zeros(n * count, dtype=dtype)
        source = torch.stack([value(10 * rank + r, count, dtype) for r in range(n)]).flatten()
        _call(dist.all_to_all_single, output, source, turn=turn)
        expected = torch.stack([value(10 * r + rank, count, dtype) for r in range(n)]).flatten()
        expect.equal(output, expected, dtype, count)
    # Rank r sends r + p rows of three to rank p.
    sent, received = [rank + p for p in range(n)], [p + rank for p in range(n)]
    output = torch.zeros(sum(received), 3)
    source = torch.full((sum(sent), 3), float(rank))
    dist.all_to_all_single(output, source, received, sent)
    expected = torch.cat([torch.full((rows, 3), float(p)) for p, rows in enumerate(received)])
    expect.equal(output, expected, "uneven")


def coalescing_manager(rank, n, expect):
    small = [value(rank, 5 + i, torch.float32) for i in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in small:
            dist.all_reduce(tensor)
    manager.wait()
    for i, tensor in enumerate(small):
        expect.equal(tensor, reduced(Op.SUM, n, 5 + i, torch.float32), "all_reduce", i)
    gathered = [torch.zeros(n * (i + 1)) for i in range(3)]
    with dist._coalescing_manager():
        for i, output in enumerate(gathered):
            dist.all_gather_into_tensor(output, value(rank, i + 1, torch.float32))
    for i, output in enumerate(gathered):
        expected = torch.stack([value(r, i + 1, torch.float32) for r in range(n)]).flatten()
        expect.equal(output, expected, "all_gather", i)
    outputs = [torch.zeros(i + 1) for i in range(3)]
    with dist._coalescing_manager():
        for i, output in enumerate(outputs):
            dist.reduce_scatter_tensor(output, value(rank, n * (i + 1), torch.float32))
    for i, output in enumerate(outputs):
        expected = reduced(Op.SUM, n, n * (i + 1), torch.float32)
        expect.equal(output, expected[rank * (i + 1) : (rank + 1) * (i + 1)], "reduce_scatter", i)
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(tensor := value(rank, 9, torch.float32), src=0)
    expect.equal(tensor, value(0, 9, torch.float32), "broadcast between start and end")


def barrier(rank, n, expect):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=None)
    sequence = dist.group.WORLD._get_sequence_number_for_group()
    dist.barrier()
    after = dist.group.WORLD._get_sequence_number_for_group()
    expect.true(after == sequence + 1, "sequence number")


def objects(rank, n, expect):
    everyone = [None] * n
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank * 100})
    expect.true(everyone == [{"rank": r, "text": "x" * r * 100} for r in range(n)], "all_gather")
    received = [rank, "mine"]
    dist.broadcast_object_list(received, src=n - 1)
    expect.true(received == [n - 1, "mine"], "broadcast")
    gathered = [None] * n if rank == 0 else None
    dist.gather_object((rank,), gathered, dst=0)
    expect.true(rank != 0 or gathered == [(r,) for r in range(n)], "gather")
    part = [None]
    dist.scatter_object_list(part, [f"for {r}" for r in range(n)] if rank == 0 else None, src=0)
    expect.true(part == [f"for {rank}"], "scatter")


def other_dtypes_move(rank, n, expect):
    """Types that nothing reduces still move."""
    for dtype in (torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        raw = torch.arange(8, dtype=torch.uint8) + rank
        tensor = raw.clone().view(dtype)
        dist.group.WORLD.broadcast(tensor, 0).wait()
        expect.equal(tensor.view(torch.uint8), torch.arange(8, dtype=torch.uint8), dtype)


CHECKS = {
    check.__name__: check
    for check in (
        all_reduce,
        all_reduce_large,
        all_reduce_premultiplied,
        all_reduce_strided,
        all_reduce_coalesced,
        all_reduce_sparse,
        reduce,
        broadcast,
        all_gather,
        all_gather_uneven,
        all_gather_into_tensor,
        gather,
        scatter,
        reduce_scatter,
        reduce_scatter_uneven,
        reduce_scatter_tensor,
        all_to_all,
        all_to_all_single,
        coalescing_manager,
        barrier,
        objects,
        other_dtypes_move,
    )
}


def _make_checks(rank, world_size):
    """What each check found; after an exception the group is of no use for the checks behind it."""
    outcomes = dict.fromkeys(CHECKS, "not reached: an earlier check raised")
    for name, check in CHECKS.items():
        expect = Expectations()
        try:
            check(rank, world_size, expect)
        except Exception:
            outcomes[name] = traceback.format_exc()
            dmlcomm.abort("a check raised")
            break
        outcomes[name] = "\n".join(expect.failures[:10])
    return outcomes


@functools.cache
def _outcomes(transport, world_size):
    """Results by rank; or the error of the whole run, which is then every check's."""
    env = {"DMLCOMM_TRANSPORT": transport}
    try:
        return run_ranks(_make_checks, world_size, env=env, deadline_s=120)
    except RanksFailedError as error:
        return error


# All checks of a run are for the process that has made it, where pytest has several.
RUNS = [
    pytest.param(transport, size, marks=pytest.mark.xdist_group(f"{transport}-{size}"))
    for transport in TRANSPORTS
    for size in WORLD_SIZES
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("transport", "world_size"), RUNS)
def test_every_rank_has_the_expected_values(transport, world_size, check):
    outcomes = _outcomes(transport, world_size)
    if isinstance(outcomes, RanksFailedError):
        raise outcomes
    for rank, outcome in enumerate(outcomes):
        assert not outcome[check], f"rank {rank}: {outcome[check]}"


def _sum_many_elements(rank, world_size, count):
    tensor = torch.full((count,), float(rank))
    dist.all_reduce(tensor)
    return {tensor.min().item(), tensor.max().item()} == {sum(range(world_size))}


def test_blocks_that_are_longer_than_what_a_rank_takes_ahead_keep_their_order():
    """On two cores these are over 1024, so they grow; if one overtook another, it would hang."""
    count = 70_000_000
    env = {"DMLCOMM_TRANSPORT": "tcp"}
    assert all(run_ranks(_sum_many_elements, 6, count, env=env, deadline_s=120))
