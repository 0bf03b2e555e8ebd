"""What calls return and raise: Work, futures, profiler ranges, wrong arguments."""

import gc
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import run_ranks


def _work_of_a_collective(rank, n):
    tensor = torch.full((4,), float(rank))
    before = dist.group.WORLD._get_sequence_number_for_group()
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert [t.tolist() for t in work.result()] == [[sum(range(n))] * 4]
    assert work.wait(timedelta(seconds=1)) is True
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 1


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_work(world_size):
    run_ranks(_work_of_a_collective, world_size)


def _future_without_wait(rank, n):
    tensor = torch.full((4,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    deadline = time.monotonic() + 20
    while not future.done():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    (result,) = future.value()
    assert result.data_ptr() == tensor.data_ptr()
    assert tensor.tolist() == [sum(range(n))] * 4


@pytest.mark.parametrize("world_size", [1, 2])
def test_future_completes_although_nobody_waits(world_size):
    run_ranks(_future_without_wait, world_size)


def _chain(rank, n):
    """A callback starts the next collective and waits for it, as PowerSGD's does."""

    def second(future):
        (tensor,) = future.value()
        return dist.all_reduce(tensor * 2, async_op=True).get_future().wait()[0]

    futures = [
        dist.all_reduce(torch.ones(3) * i, async_op=True).get_future().then(second)
        for i in range(5)
    ]
    for i, future in enumerate(futures):
        assert future.wait().tolist() == [2.0 * i * n * n] * 3


def test_callback_may_wait_for_another_collective():
    # One rank alone: with more, callbacks start collectives in an order that may differ.
    run_ranks(_chain, 1)


def _nested_wait(rank, n):
    def second(future):
        (tensor,) = future.value()
        return dist.all_reduce(tensor * 2, async_op=True).get_future().wait()[0]

    for i in range(5):
        future = dist.all_reduce(torch.ones(3) * i, async_op=True).get_future().then(second)
        assert future.wait().tolist() == [2.0 * i * n * n] * 3


def test_callback_on_several_ranks():
    run_ranks(_nested_wait, 3)


def _dropped(rank, n):
    """The memory of a Work that nobody kept stays until the operation is done."""
    for i in range(50):
        dist.all_reduce(torch.full((50_000,), float(i)), async_op=True)
        dist.all_reduce(torch.full((500, 2), float(i)).t(), async_op=True)
        gc.collect()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == n


def test_work_may_be_dropped():
    run_ranks(_dropped, 3)


def _out_of_order(rank, n):
    tensors = [torch.full((1000 * i + 1,), float(rank)) for i in range(10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert all(tensor.eq(sum(range(n))).all() for tensor in tensors)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_waits_in_any_order(transport):
    run_ranks(_out_of_order, 4, env={"DMLCOMM_TRANSPORT": transport})


def _two_threads(rank, n):
    """Two groups, each used by a thread of its own; the GIL is free while one waits."""
    groups = [dist.new_group(), dist.new_group()]

    def work(group, scale):
        for i in range(100):
            tensor = torch.full((100,), float(scale * i))
            dist.all_reduce(tensor, group=group)
            assert tensor.eq(scale * i * n).all()

    threads = [threading.Thread(target=work, args=(g, s)) for s, g in enumerate(groups, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_threads_use_groups_at_the_same_time():
    run_ranks(_two_threads, 2)


def _wait_with_timeout(rank, n):
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1)
    if rank == 1:
        store.wait(["rank 0 has given up"])
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        started = time.monotonic()
        with pytest.raises(dmlcomm.CommTimeoutError, match="timeout"):
            work.wait(timedelta(milliseconds=200))
        assert 0.15 < time.monotonic() - started < 0.9
        store.set("rank 0 has given up", "")
    work.wait()
    assert tensor.item() == n


@pytest.mark.alone
def test_wait_that_gives_up_leaves_the_operation_running():
    run_ranks(_wait_with_timeout, 2)


def _ranges(rank, n):
    group = dist.group.WORLD
    with torch.profiler.profile(record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(5, 3))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        dist.broadcast(torch.ones(2), src=0)
        dist.all_gather([torch.ones(2) for _ in range(n)], torch.ones(2))
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * n))
        group.barrier().wait()
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["dmlcomm:all_reduce"] == 2
    for name in ("broadcast", "all_gather", "_reduce_scatter_base", "barrier"):
        assert counts[f"dmlcomm:{name}"] == 1, counts
    shapes = [e.input_shapes for e in profiler.events() if e.name == "dmlcomm:all_reduce"]
    assert [[5, 3]] in shapes, shapes


def test_profiler_shows_ranges_with_shapes():
    run_ranks(_ranges, 2)


def _wrong_arguments(rank, n):
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))

    def refused(kind, match, function, *args, **kwargs):
        with pytest.raises(kind, match=match):
            function(*args, **kwargs)

    refused(TypeError, "ComplexHalf", group.allreduce, [torch.zeros(2, dtype=torch.complex32)])
    refused(ValueError, "band.*Float", dist.all_reduce, torch.ones(2), op=dist.ReduceOp.BAND)
    elsewhere = torch.ones(2, device="meta")  # stands for any device but CPU and CUDA
    refused(ValueError, "expected a CPU or CUDA tensor", backend.allreduce, [elsewhere])
    refused(ValueError, f"expected {n} tensors", dist.all_gather, [torch.ones(2)], torch.ones(2))
    refused(ValueError, "elements", dist.all_gather_into_tensor, torch.ones(3), torch.ones(2))
    refused(ValueError, "elements", dist.reduce_scatter_tensor, torch.ones(2), torch.ones(5))
    refused(ValueError, "does not divide", dist.all_to_all_single, torch.ones(3), torch.ones(3))
    three = torch.ones(3)
    refused(ValueError, "sum to", dist.all_to_all_single, three, three, [1, 1], [1, 2])
    refused(ValueError, "root", group.broadcast, torch.ones(2), n)
    refused(ValueError, "rank 7 is not in", group.send, [torch.ones(2)], 7, 0)
    refused(ValueError, "tag", group.send, [torch.ones(2)], 0, -1)
    # Nothing was sent: the group works as before.
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [n, n]


def test_wrong_arguments_are_refused_and_harm_nothing():
    run_ranks(_wrong_arguments, 2)


def _overlapping_output(rank, n):
    tensor = torch.ones(1).expand(4)
    work = dist.all_reduce(tensor, async_op=True)
    with pytest.raises(RuntimeError, match="single memory location"):
        work.wait()
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="single memory location"):
        work.get_future().wait()


def test_failure_to_copy_back_is_raised():
    run_ranks(_overlapping_output, 2)
