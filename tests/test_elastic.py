"""Groups that go on without some of their ranks."""

import functools
import gc
import json
import os
import signal
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from dmlcomm.backends import shrinking
from helpers.ranks import Ranks, meet, report, run_ranks

shrinks = pytest.mark.skipif(
    not hasattr(dist, "shrink_group"), reason="this torch has no shrink_group"
)
reconfigures = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="this torch has no reconfigure"
)
has_hooks = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_abort_hook"), reason="this torch has no hooks"
)
STEPS = 6
KILLED = 2


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def train(model, steps, dies_at=None):
    """Steps of DDP in the default group, on data of the rank."""
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        if step == dies_at:
            report("dies")
            os.kill(os.getpid(), signal.SIGKILL)
        inputs = torch.randn(16, 32)
        optimizer.zero_grad()
        parallel(inputs).square().mean().backward()
        optimizer.step()


def train_and_shrink(rank, n):
    model = make_model()
    torch.manual_seed(rank)
    with pytest.raises(dmlcomm.PeerLostError, match=f"rank {KILLED}") as caught:
        train(model, 1000, dies_at=STEPS if rank == KILLED else None)
    del caught  # with the DDP of before, which would take part in the gradients
    gc.collect()
    dist.shrink_group([KILLED], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    assert (dist.get_rank(), dist.get_world_size()) == (rank - (rank > KILLED), n - 1)
    train(model, STEPS)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total.item() == sum(range(n)) - KILLED
    assert f"rank {dist.get_rank()}" in dmlcomm.describe()
    return [parameter.tolist() for parameter in model.parameters()]


@shrinks
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_survivors_of_a_killed_rank_shrink_their_group_and_train_on(transport):
    with Ranks(train_and_shrink, 4, env={"DMLCOMM_TRANSPORT": transport}) as ranks:
        ranks.wait_for("dies", [KILLED])
        first, *others = ranks.collect(only=[rank for rank in range(4) if rank != KILLED])
        assert all(weights == first for weights in others)


@shrinks
def test_what_others_have_wrapped_is_wrapped_once_more_and_once_only(monkeypatch):
    def create(backend):
        return backend

    of_others = functools.wraps(create)(lambda backend: create(backend))
    name = "_create_shrunk_process_group"
    monkeypatch.setattr(dist.distributed_c10d, name, of_others, raising=False)
    shrinking.keep_type("dmlcomm")
    first = getattr(dist.distributed_c10d, name)
    assert first is not of_others
    shrinking.keep_type("dmlcomm")
    assert getattr(dist.distributed_c10d, name) is first


def shrink_twice_and_a_part(rank, n):
    part = dist.new_group([0, 1, 3], backend="cpu:dmlcomm")
    if rank in (0, 1):
        smaller = dist.shrink_group([2], group=part)  # its last rank
        assert smaller._device_types == [torch.device("cpu")]
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=smaller)
        assert tensor.item() == 1
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_shrinking
    for excluded, size in (([n - 1], n - 1), ([0], n - 2)):
        if dist.get_rank() in excluded:
            with pytest.raises(RuntimeError, match="exclu"):
                dist.shrink_group(excluded)
            return None
        dist.shrink_group(excluded)
        assert dist.get_world_size() == size
        assert {device.type for device in dist.group.WORLD._device_types} == {"cpu", "cuda"}
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
    dmlcomm.set_timeout(timedelta(seconds=20))
    return tensor.item()


@shrinks
def test_groups_shrink_again_and_again():
    assert run_ranks(shrink_twice_and_a_part, 4) == [None, 3, 3, None]


def join(store, rank, num_ranks):
    """A process of a job that others leave and join; torch gets no rank that counts."""
    dist.init_process_group(
        "dmlcomm", store=store, rank=rank, world_size=num_ranks, enable_reconfigure=True
    )


def form(store, number, place, num_ranks, **options):
    """The members meet as group `number`, each at its place."""
    store.set(f"handle/{number}/{place}", c10d._get_reconfigure_handle())
    handles = [store.get(f"handle/{number}/{p}").decode() for p in range(num_ranks)]
    c10d._reconfigure(uuid=number, handles=handles, **options).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (place, num_ranks)


def train_with_a_newcomer(rank, n, path):
    store = dist.FileStore(path, n)
    place, is_newcomer = (KILLED, True) if rank == n - 1 else (rank, False)
    if is_newcomer:
        store.wait(["a rank has died"], timedelta(seconds=60))
    join(store, place, n - 1)
    model = make_model()
    torch.manual_seed(rank)
    if is_newcomer:
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
    else:
        form(store, 1, place, n - 1)
        with pytest.raises(dmlcomm.PeerLostError, match=f"rank {KILLED}") as caught:
            train(model, 1000, dies_at=STEPS if place == KILLED else None)
        del caught
        gc.collect()
        store.set("a rank has died", "")
    form(store, 2, place, n - 1)
    train(model, STEPS)
    assert all(parameter.any() for parameter in model.parameters())
    return [parameter.tolist() for parameter in model.parameters()]


@reconfigures
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_newcomer_takes_the_place_of_a_killed_rank(transport, tmp_path):
    env = {"DMLCOMM_TRANSPORT": transport}
    arguments = (train_with_a_newcomer, 5, [f"{tmp_path}/store"])
    with Ranks(*arguments, env=env, make_group=False) as ranks:
        ranks.wait_for("dies", [KILLED])
        first, *others = ranks.collect(only=[rank for rank in range(5) if rank != KILLED])
        assert all(weights == first for weights in others)


def grow_and_shrink(rank, n, path):
    store = dist.FileStore(path, n)
    join(store, rank, n)
    assert dist.group.WORLD.supports_reconfigure
    with pytest.raises(dmlcomm.AbortedError, match=r"no ranks yet.*reconfigure"):
        dist.all_reduce(torch.ones(1))
    own = c10d._get_reconfigure_handle()
    with pytest.raises(ValueError, match="is not among the 1 members"):
        c10d._reconfigure(uuid=100, handles=["another"])
    with pytest.raises(ValueError, match="twice"):
        c10d._reconfigure(uuid=100, handles=[own, own])
    sums = []
    for number, members in enumerate(([0, 1], [2, 1, 0], [1, 2]), 1):
        if rank not in members:
            continue
        form(store, number, members.index(rank), len(members))
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor)
        sums.append(tensor[0].item())
        model = make_model()
        with pytest.raises(ValueError, match="use DistributedDataParallel"):
            dmlcomm.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    if rank != 1:
        return sums
    with pytest.raises(ValueError, match="uuid 3 was used before"):
        c10d._reconfigure(uuid=3, handles=[own])
    with pytest.raises(dmlcomm.CommTimeoutError, match="has not published"):
        c10d._reconfigure(uuid=4, handles=[own, "nobody"], timeout=timedelta(seconds=0.2))
    c10d._reconfigure(uuid=5, handles={own}).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    dist.all_reduce(torch.ones(1))
    return sums


@reconfigures
def test_groups_grow_and_shrink_by_reconfigure(tmp_path):
    with Ranks(grow_and_shrink, 3, [f"{tmp_path}/store"], make_group=False) as ranks:
        assert ranks.collect() == [[1, 3], [1, 3, 3], [3, 3]]


def fail_with_hooks(rank, n):
    if rank == 1:
        dist.all_reduce(torch.ones(1))
        meet("the good one has ended")
        os.kill(os.getpid(), signal.SIGKILL)
    calls, called = [], threading.Event()
    group = dist.group.WORLD
    assert group.supports_abort_hooks
    group.register_abort_hook(1, lambda: calls.append("first"))
    group.register_abort_hook(2, lambda: called.set())
    group.register_abort_hook(3, lambda: calls.append("removed"))
    group.unregister_abort_hook(3)
    dist.all_reduce(torch.ones(1))
    meet("the good one has ended")
    assert calls == []
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert called.wait(60)  # although nobody waits for the operation
    calls.clear()
    with pytest.raises(dmlcomm.PeerLostError):
        dist.all_reduce(torch.ones(1))
    assert calls == ["first"]  # before the error came
    with pytest.raises(dmlcomm.PeerLostError):
        work.wait()
    dmlcomm.abort("enough")
    assert calls == ["first", "first"]


@has_hooks
def test_abort_hooks_are_called_before_an_error_is_told():
    with Ranks(fail_with_hooks, 2) as ranks:
        ranks.collect(only=[0])


def extend_timeouts(rank, n):
    from torch._C._distributed_c10d import _dump_fr_trace_json

    group = dist.group.WORLD
    group._add_ephemeral_timeout(timedelta(seconds=30))
    group._add_ephemeral_timeout(timedelta(seconds=7))
    if rank == 0:
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)]
        report("waits")
    else:
        report("waits")
        works = [dist.all_reduce(torch.ones(1), async_op=True)]
        works[0].wait()
        works += [dist.all_reduce(torch.ones(1), async_op=True)]
    for work in works:
        work.wait()
    dist.all_reduce(torch.ones(1))
    entries = json.loads(_dump_fr_trace_json(backend="dmlcomm"))["entries"]
    return [entry["timeout_ms"] for entry in entries]


@has_hooks
def test_time_that_is_added_counts_until_the_next_operation_ends():
    first, second = run_ranks(extend_timeouts, 2)
    assert first[0] == second[0] == 87_000
    assert second[1:] == [50_000, 50_000]
    assert first[2] == 50_000
