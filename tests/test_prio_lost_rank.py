"""`dmlcomm.DistributedOptimizer` after a rank was killed: others load a checkpoint and go on."""

import contextlib
import copy
import os
import signal

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from helpers.prio import (
    DEFERRED,
    OPTIMIZERS,
    assert_equal_bits,
    loss_of,
    make_model,
    plain_step,
    wrapped,
)
from helpers.ranks import Ranks, meet, report

pytestmark = [
    pytest.mark.xdist_group("prio_optimizer"),
    pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="this torch has no shrink_group"),
]

SAVED_AT = 3


def _die_in_a_step(model, optimizer, rank):
    optimizer.zero_grad()
    loss_of(model, rank, SAVED_AT).backward()
    report("dies")
    os.kill(os.getpid(), signal.SIGKILL)


def _train_until_one_is_lost(model, optimizer, rank, dies):
    """Returns a checkpoint."""
    for step in range(SAVED_AT):
        plain_step(model, optimizer, rank, step)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    meet(f"{dist.get_world_size()} have saved")
    if dies:
        _die_in_a_step(model, optimizer, rank)
    with pytest.raises(dmlcomm.PeerLostError):
        for step in range(SAVED_AT, 1000):
            plain_step(model, optimizer, rank, step)
    return saved


def _train_on(model, optimizer, saved, rank):
    weights, state = copy.deepcopy(saved)
    getattr(model, "module", model).load_state_dict(weights)
    optimizer.load_state_dict(state)
    for step in range(SAVED_AT, SAVED_AT + 3):
        plain_step(model, optimizer, rank, step)


def _go_on(rank, n, closes_first):
    for schedule in DEFERRED:
        last = dist.get_world_size() - 1
        model = make_model()
        optimizer = wrapped(model, schedule=schedule)
        saved = _train_until_one_is_lost(model, optimizer, rank, dies=rank == last)
        if closes_first:
            with contextlib.suppress(dmlcomm.CommError):
                optimizer.close()
            optimizer.close()  # says it once
        else:  # loading drops the updates that are lost
            model.load_state_dict(saved[0])
            model.state_dict()
            optimizer.close()
        model.state_dict()
        copy.deepcopy(model)
        dist.shrink_group([last], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        inner = optimizer._optimizer
        with dmlcomm.DistributedOptimizer(inner, model, schedule=schedule) as optimizer:
            _train_on(model, optimizer, saved, rank)
        expected = make_model()
        ddp = DistributedDataParallel(expected, find_unused_parameters=True)
        _train_on(ddp, OPTIMIZERS["SGD"](ddp.parameters()), saved, rank)
        assert_equal_bits(model, expected, schedule)


@pytest.mark.parametrize("closes_first", [True, False], ids=["close, load", "load, close"])
def test_survivors_load_a_checkpoint_shrink_and_train_on(closes_first):
    with Ranks(_go_on, 4, (closes_first,), deadline_s=120) as ranks:
        ranks.wait_for("dies", [3])
        ranks.wait_for("dies", [2])
        ranks.collect(only=[0, 1])
