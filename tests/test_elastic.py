"""Groups that go on without some of their ranks."""

import functools
import gc
import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from dmlcomm.backends import shrinking
from helpers.ranks import Ranks, report, run_ranks

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "shrink_group"), reason="this torch has no shrink_group"
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


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_survivors_of_a_killed_rank_shrink_their_group_and_train_on(transport):
    with Ranks(train_and_shrink, 4, env={"DMLCOMM_TRANSPORT": transport}) as ranks:
        ranks.wait_for("dies", [KILLED])
        first, *others = ranks.collect(only=[rank for rank in range(4) if rank != KILLED])
        assert all(weights == first for weights in others)


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
    part = dist.new_group([0, 1, 3])
    if rank in (0, 1):
        smaller = dist.shrink_group([2], group=part)  # its last rank
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
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
    dmlcomm.set_timeout(timedelta(seconds=20))
    return tensor.item()


def test_groups_shrink_again_and_again():
    assert run_ranks(shrink_twice_and_a_part, 4) == [None, 3, 3, None]
