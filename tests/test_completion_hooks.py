"""Completion hooks of torch 2.15: called once for each operation that has succeeded."""

import os
import signal
import sys
import threading

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers.ranks import Ranks, meet, run_ranks
from helpers.waiting import eventually

pytestmark = [
    pytest.mark.skipif(
        not hasattr(dist.ProcessGroup, "supports_completion_hooks"),
        reason="this torch has no completion hooks",
    ),
    pytest.mark.xdist_group("torch_modules"),
]


@pytest.fixture
def folder(torch_modules):
    """Where the module lies that notes the ends of operations."""
    return torch_modules


def load(folder):
    sys.path.insert(0, folder)
    import completion_hooks

    return completion_hooks


def start_operations(rank):
    """One of each kind, and those that are waited for together."""
    other = 1 - rank
    tensors = [torch.ones(10), torch.ones(100_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    works.append(dist.broadcast(torch.ones(3), 0, async_op=True))
    works.append(dist.barrier(async_op=True))
    works.append(dist.isend(torch.ones(2), 1) if rank == 0 else dist.irecv(torch.ones(2), 0))
    pair = [
        dist.P2POp(dist.isend, torch.ones(1), other),
        dist.P2POp(dist.irecv, torch.ones(1), other),
    ]
    return works + dist.batch_isend_irecv(pair)


def succeed(rank, n, folder):
    hooks = load(folder)
    dist.all_reduce(torch.ones(1))
    hooks.watch(dist.group.WORLD, 1)
    works = start_operations(rank)
    keys = [hooks.key_of(work) for work in works]
    assert len(set(keys)) == len(keys)
    for work in works[::2]:  # nobody waits for the others
        work.wait()
    eventually(lambda: set(hooks.ended()) >= set(keys), "the hook is called for all")
    dist.all_reduce(torch.ones(1))  # blocks
    hooks.unwatch(dist.group.WORLD, 1)
    for work in works:
        work.wait()
    after = hooks.ended()
    assert [after.count(key) for key in keys] == [1] * len(keys)
    late = dist.all_reduce(torch.ones(1), async_op=True)
    late.wait()
    assert hooks.ended() == after
    return len(after) - len(keys)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_hook_is_called_once_for_each_operation_that_ends(folder, transport):
    results = run_ranks(succeed, 2, folder, env={"DMLCOMM_TRANSPORT": transport})
    assert all(others >= 1 for others in results)  # that of the blocking call


def fail(rank, n, folder):
    hooks = load(folder)
    group, aborted = dist.group.WORLD, threading.Event()
    hooks.watch(group, 1)
    group.register_abort_hook(2, aborted.set)
    good = dist.all_reduce(torch.ones(1), async_op=True)
    good.wait()
    meet("the good one has ended")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    bad = dist.all_reduce(torch.ones(1), async_op=True)
    keys = hooks.key_of(good), hooks.key_of(bad)
    eventually(aborted.is_set, "the failure is told by the other hook")
    with pytest.raises(dmlcomm.PeerLostError):
        bad.wait()
    with pytest.raises(dmlcomm.PeerLostError):
        dist.all_reduce(torch.ones(1))
    return [hooks.ended().count(key) for key in keys], len(hooks.ended())


def test_hook_is_not_called_for_an_operation_that_fails(folder):
    with Ranks(fail, 2, [folder]) as ranks:
        assert ranks.collect(only=[0]) == [([1, 0], 1)]
