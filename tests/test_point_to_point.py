"""send, recv, tags, any source, batches."""

import pytest
import torch
import torch.distributed as dist

from helpers import Expectations, run_ranks
from helpers.values import DTYPES, value

TRANSPORTS = ["auto", "tcp"]


def _ring(rank, n):
    """Every rank sends to the next one and receives from the one before, in every type."""
    expect = Expectations()
    after, before = (rank + 1) % n, (rank - 1) % n
    for dtype in DTYPES:
        for count in (0, 1, 1001, 100_003):
            received = torch.zeros(count, dtype=dtype)
            works = [
                dist.isend(value(rank, count, dtype), after),
                dist.irecv(received, before),
            ]
            for work in works:
                work.wait()
            expect.equal(received, value(before, count, dtype), dtype, count)
    expect.check()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ring(world_size, transport):
    run_ranks(_ring, world_size, env={"DMLCOMM_TRANSPORT": transport})


def _blocking_both_ways(rank, n):
    tensor = torch.arange(1000.0) * (rank + 1)
    other = torch.zeros(1000)
    if rank == 0:
        dist.send(tensor, 1)
        assert dist.recv(other, 1) == 1
    else:
        assert dist.recv(other, 0) == 0
        dist.send(tensor, 0)
    assert torch.equal(other, torch.arange(1000.0) * (2 - rank))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocking_calls(transport):
    run_ranks(_blocking_both_ways, 2, env={"DMLCOMM_TRANSPORT": transport})


def _tags_out_of_order(rank, n):
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.full((4,), float(tag)), 1, tag=tag)
        return
    for tag in (3, 1, 2):
        tensor = torch.zeros(4)
        dist.recv(tensor, 0, tag=tag)
        assert tensor.tolist() == [tag] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tags_keep_messages_apart(transport):
    run_ranks(_tags_out_of_order, 2, env={"DMLCOMM_TRANSPORT": transport})


def _messages_in_order(rank, n):
    if rank == 0:
        works = [dist.isend(torch.tensor([float(i)]), 1) for i in range(50)]
        for work in works:
            work.wait()
    else:
        received = [torch.zeros(1) for _ in range(50)]
        for work in [dist.irecv(tensor, 0) for tensor in received]:
            work.wait()
        assert [tensor.item() for tensor in received] == list(range(50))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_source_and_tag_arrive_in_order(transport):
    run_ranks(_messages_in_order, 2, env={"DMLCOMM_TRANSPORT": transport})


def _from_anyone(rank, n):
    if rank != 0:
        for i in range(3):
            dist.send(torch.full((2, 2), float(10 * rank + i)), 0, tag=i)
        return
    for i in range(3):
        sources = set()
        for _ in range(n - 1):
            tensor = torch.zeros(2, 2)
            source = dist.recv(tensor, tag=i)
            assert tensor.eq(10 * source + i).all()
            sources.add(source)
        assert sources == set(range(1, n))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_receive_from_any_source(world_size, transport):
    run_ranks(_from_anyone, world_size, env={"DMLCOMM_TRANSPORT": transport})


def _batch(rank, n):
    received = [torch.zeros(100 + r) for r in range(n)]
    sent = [torch.full((100 + rank,), float(rank)) for _ in range(n)]
    ops = []
    for r in range(n):
        if r != rank:
            ops.append(dist.P2POp(dist.irecv, received[r], r))
            ops.append(dist.P2POp(dist.isend, sent[r], r))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert all(received[r].eq(r).all() for r in range(n) if r != rank)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [2, 5])
def test_batch_of_sends_and_receives(world_size, transport):
    run_ranks(_batch, world_size, env={"DMLCOMM_TRANSPORT": transport})


def _strided(rank, n):
    matrix = torch.arange(12.0).reshape(3, 4)
    if rank == 0:
        dist.send(matrix.t(), 1)
    else:
        received = torch.zeros(3, 4).t()
        dist.recv(received, 0)
        assert torch.equal(received, matrix.t())


def test_strided_tensors():
    run_ranks(_strided, 2)


def _to_oneself(rank, n):
    received = torch.zeros(1000)
    receive = dist.group.WORLD.recv([received], rank, 5)
    dist.group.WORLD.send([torch.arange(1000.0)], rank, 5).wait()
    receive.wait()
    assert torch.equal(received, torch.arange(1000.0))


@pytest.mark.parametrize("world_size", [1, 2])
def test_message_to_oneself(world_size):
    run_ranks(_to_oneself, world_size)


def _among_collectives(rank, n):
    """Messages do not disturb the order of collectives."""
    for i in range(20):
        total = torch.tensor([float(i)])
        works = [dist.all_reduce(total, async_op=True)]
        received = torch.zeros(3000)
        if rank == i % n:
            works.append(dist.isend(torch.full((3000,), float(i)), (rank + 1) % n))
        if rank == (i + 1) % n:
            works.append(dist.irecv(received, i % n))
        for work in reversed(works):
            work.wait()
        assert total.item() == n * i
        assert rank != (i + 1) % n or received.eq(i).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mixed_with_collectives(transport):
    run_ranks(_among_collectives, 3, env={"DMLCOMM_TRANSPORT": transport})
