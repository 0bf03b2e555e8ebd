"""Tickets below DDP and FSDP2: the same weights, and tickets in the order of the forward pass."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm.prio
from helpers import run_ranks
from helpers.prio import OPTIMIZERS, loss_of, make_model

pytestmark = pytest.mark.xdist_group("prio_training")

STEPS = 4


class _Turned(nn.Module):
    """Runs its modules from the last to the first: the first bucket of DDP is needed last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x).relu()
        return x


def _model():
    torch.manual_seed(1)
    return _Turned()


def _train(model, rank, make=OPTIMIZERS["SGD"], steps=STEPS):
    optimizer = make(model.parameters())
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(3, 16, generator=generator)).square().mean().backward()
        optimizer.step()


def _train_in_parts(rank, with_hook):
    """Some gradients stay here for a pass, and some parameters are used by one rank or none."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.001, find_unused_parameters=True)
    if with_hook:
        model.register_comm_hook(dmlcomm.prio.HookState(model), dmlcomm.prio.comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, rank, 2 * step, branch=step == 2).backward()
        loss_of(model, rank, 2 * step + 1, branch=step == 1 and rank == 0).backward()
        optimizer.step()
    return list(model.parameters())


def _noted_tickets(module):
    seen = []

    def note(number):
        seen.append(number)
        return contextlib.nullcontext()

    module.ticket = note
    return seen


def _hooked(rank, n):
    from dmlcomm.prio import ddp_hook

    for make in OPTIMIZERS.values():
        expected = DistributedDataParallel(_model(), bucket_cap_mb=0.001)
        _train(expected, rank, make, 100)
        model = DistributedDataParallel(_model(), bucket_cap_mb=0.001)
        model.register_comm_hook(dmlcomm.prio.HookState(model), dmlcomm.prio.comm_hook)
        _train(model, rank, make, 100)
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    parts = [_train_in_parts(rank, with_hook) for with_hook in (False, True)]
    for ours, theirs in zip(*parts, strict=True):
        assert torch.equal(ours, theirs)
    seen = _noted_tickets(ddp_hook)
    _train(model, rank)
    freed = weakref.ref(model)
    del model
    gc.collect()
    assert freed() is None
    return seen[: len(seen) // STEPS]


def test_hook_averages_as_ddp_and_gives_tickets_in_the_order_of_the_forward_pass():
    for seen in run_ranks(_hooked, 3, deadline_s=150):
        assert seen[-1] == 0  # what comes last in backward is read first
        assert len(set(seen)) == len(seen) > 1
        assert seen == sorted(seen, reverse=True)


def test_hook_needs_ddp():
    with pytest.raises(TypeError, match="expected DistributedDataParallel, got Linear"):
        dmlcomm.prio.HookState(nn.Linear(1, 1))


def _prefetch(layers):
    """Two ahead, in the order of the forward pass, and in the other direction."""
    for i, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[i + 1 : i + 3])
        layer.set_modules_to_backward_prefetch(layers[max(0, i - 2) : i][::-1])


def _sharded(rank, n, prefetches):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from dmlcomm.prio import fsdp

    mesh = init_device_mesh("cpu", (n,))
    weights = []
    seen = _noted_tickets(fsdp)
    for has_tickets in (False, True):
        model = _model()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if prefetches:
            _prefetch(list(model.layers)[::-1])
        if has_tickets:
            dmlcomm.prio.ticket_fsdp(model)
        _train(model, rank)
        assert not any("ModuleHook" in str(m._forward_pre_hooks) for m in model.modules())
        weights.append([p.full_tensor() for p in model.parameters()])
    for ours, theirs in zip(*weights, strict=True):
        assert torch.equal(ours, theirs)
    return seen


@pytest.mark.parametrize("prefetches", [False, True])
def test_fsdp2_with_tickets_gives_the_same_weights_and_goes_by_the_forward_pass(prefetches):
    from dmlcomm.prio.fsdp import LAST_GATHER, REDUCE_SCATTER

    for seen in run_ranks(_sharded, 2, prefetches, deadline_s=150):
        of_a_step = seen[-len(seen) // STEPS :]
        gathers = [number for number in of_a_step if number != REDUCE_SCATTER]
        # The model itself has no parameters. Its layers run in another order than they have, and
        # the last one keeps its weights for the backward pass.
        forward = [1, 2, 3, 4]
        assert gathers == forward + [LAST_GATHER - place for place in reversed(forward)]
        assert of_a_step.count(REDUCE_SCATTER) == 4


def test_fsdp2_is_needed_for_its_tickets():
    with pytest.raises(ValueError, match="fully_shard"):
        dmlcomm.prio.ticket_fsdp(nn.Linear(1, 1))
