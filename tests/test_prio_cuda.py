"""`DistributedOptimizer`, and hooks of DDP and FSDP2, with a model on a GPU that two ranks share.

The weights are those of DDP, and of FSDP2 without tickets.
"""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm.prio
from dmlcomm.hooks import QuantizeState, bf16_hook, quantize_hook
from helpers import run_ranks
from helpers.prio import (
    OPTIMIZERS,
    STEPS,
    after_a_step,
    assert_as_ddp,
    assert_equal_bits,
    loss_of,
    make_model,
    trained_with_auto,
    trained_with_ddp,
)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU for CUDA"),
    pytest.mark.alone,
]


def _weights(rank, n):
    torch.set_default_device("cuda")
    for make in OPTIMIZERS.values():
        assert_as_ddp(rank, make=make)


def _auto(rank, n):
    torch.set_default_device("cuda")
    trained_with_auto(rank)


def _scaled_and_clipped(rank, n):
    torch.set_default_device("cuda")

    def prepare(optimizer):
        return (torch.amp.GradScaler("cuda", init_scale=1024.0),)

    def step_of_ddp(model, optimizer, rank, step, scaler):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(model, rank, step)
        scaler.scale(loss).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    assert_as_ddp(rank, step_of_ddp, prepare=prepare)


def _checkpoints(rank, n):
    torch.set_default_device("cuda")
    for schedule in ("cross", "dear"):
        model, optimizer, flushed = after_a_step(rank, schedule)
        state = model.state_dict()
        for name, weight in flushed.state_dict().items():
            assert torch.equal(state[name], weight), (schedule, name)
        optimizer.close()


def _hooks(rank, n):
    torch.set_default_device("cuda")
    expected = trained_with_ddp(rank)
    for name in ("tickets", "bf16", "int8"):
        ddp = DistributedDataParallel(
            make_model(), bucket_cap_mb=0.001, find_unused_parameters=True
        )
        if name == "tickets":
            ddp.register_comm_hook(dmlcomm.prio.HookState(ddp), dmlcomm.prio.comm_hook)
        elif name == "bf16":
            ddp.register_comm_hook(None, bf16_hook)
        else:
            ddp.register_comm_hook(QuantizeState(ddp), quantize_hook)
        optimizer = OPTIMIZERS["SGD"](ddp.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            optimizer.step()
        if name == "tickets":
            assert_equal_bits(ddp.module, expected, name)
        for ours, theirs in zip(ddp.module.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02)


def _sharded(rank, n):
    from torch.distributed.fsdp import fully_shard

    weights = []
    for has_tickets in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        if has_tickets:
            dmlcomm.prio.ticket_fsdp(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + rank)
            model(torch.randn(3, 16, generator=generator).cuda()).square().mean().backward()
            optimizer.step()
        weights.append([p.full_tensor() for p in model.parameters()])
    for ours, theirs in zip(*weights, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "function", [_weights, _auto, _scaled_and_clipped, _checkpoints, _hooks, _sharded]
)
def test_training_on_a_gpu(function):
    run_ranks(function, 2, deadline_s=150)
