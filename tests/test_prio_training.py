"""Tickets below DDP and FSDP2: the same weights, and tickets in the order of the forward pass."""

import contextlib
import copy
import functools
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm.prio
from dmlcomm.prio.ticket import current_ticket
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


def _compiled_as_one_graph(rank):
    """The error says what to do, and that helps. A copy of the model calls no hook."""
    inner = torch.compile(_model(), backend="eager", fullgraph=True)
    model = DistributedDataParallel(inner)
    model.register_comm_hook(dmlcomm.prio.HookState(model), dmlcomm.prio.comm_hook)
    with pytest.raises(RuntimeError, match=r"prio.HookState learns .* or call ddp.module.compile"):
        _train(model, rank, steps=1)
    torch.compile(copy.deepcopy(inner._orig_mod), backend="eager", fullgraph=True)(torch.ones(16))
    model = DistributedDataParallel(_model())
    model.register_comm_hook(dmlcomm.prio.HookState(model), dmlcomm.prio.comm_hook)
    _train(model, rank, steps=1)
    model.module.compile(backend="eager", fullgraph=True)
    _train(model, rank)


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
    _compiled_as_one_graph(rank)
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


class _Block(nn.Sequential):
    """Has weights beside those of its modules."""

    NUM_WEIGHTS = 64

    def __init__(self, *modules):
        super().__init__(*modules)
        self.scale = nn.Parameter(torch.ones(self.NUM_WEIGHTS))

    def forward(self, x):
        return super().forward(x) * self.scale.mean()


class _Tree(nn.Module):
    """Its modules have different sizes, which tell whose weights are gathered."""

    FIRST, BLOCK, A, B = 16 * 17, _Block.NUM_WEIGHTS, 32 * 17, 16 * 33

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.block = _Block(nn.Linear(16, 32), nn.Linear(32, 16))

    def forward(self, x):
        return self.block(self.first(x))

    def parts(self):
        return self.first, self.block, self.block[0], self.block[1]


@contextlib.contextmanager
def _operations(*names):
    """Notes (elements, ticket) of each that begins, by names."""
    seen = {name: [] for name in names}
    usual = {name: getattr(dist, name) for name in names}

    def noted(name, *args, **kwargs):
        output = next(iter((*args, *kwargs.values())))
        seen[name].append((output.numel(), current_ticket()))
        return usual[name](*args, **kwargs)

    try:
        for name in names:
            setattr(dist, name, functools.partial(noted, name))
        yield seen
    finally:
        for name, function in usual.items():
            setattr(dist, name, function)


def _gathers_of_a_step(model, rank):
    with _operations("all_gather_into_tensor") as seen:
        _train(model, rank, steps=1)
    return seen["all_gather_into_tensor"]


def _trained_sharded(rank, mesh, prefetches, has_tickets):
    from torch.distributed.fsdp import fully_shard

    model = _model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if prefetches:
        _prefetch(list(model.layers)[::-1])
    if has_tickets:
        dmlcomm.prio.ticket_fsdp(model)
    # The name in torch before 2.15, and since.
    scatter = "reduce_scatter_single"
    scatter = scatter if hasattr(dist, scatter) else "reduce_scatter_tensor"
    with _operations("all_gather_into_tensor", scatter, "all_reduce") as seen:
        _train(model, rank)
    assert not any("ModuleHook" in str(m._forward_pre_hooks) for m in model.modules())
    of_a_step = [noted[-len(noted) // STEPS :] for noted in seen.values()]
    return [p.full_tensor() for p in model.parameters()], *of_a_step


def _weights_and_tickets(rank, n):
    """Of FSDP with and without lists of what to prefetch, and of HSDP."""
    from torch.distributed.device_mesh import init_device_mesh

    from dmlcomm.prio.fsdp import REDUCE_SCATTER

    mesh = init_device_mesh("cpu", (n,))
    both = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replicate", "shard"))
    for used, prefetches in ((mesh, False), (mesh, True), (both, False)):
        expected, *_ = _trained_sharded(rank, used, prefetches, False)
        weights, gathers, scatters, reductions = _trained_sharded(rank, used, prefetches, True)
        for ours, theirs in zip(weights, expected, strict=True):
            assert torch.equal(ours, theirs)
        # The model itself has no parameters. Its layers run in another order than they have.
        assert [number for _, number in gathers] == [1, 2, 3, 4, 0, 1, 2, 3]
        assert [number for _, number in scatters] == 4 * [REDUCE_SCATTER]
        assert [number for _, number in reductions] == 4 * [REDUCE_SCATTER] * (used is both)


def _orders(rank, n):
    """Of gathers with their tickets in steps that prefetch in different ways."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = _Tree()
    first, block, a, b = parts = model.parts()
    mesh = init_device_mesh("cpu", (n,))
    for part in reversed(parts):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    dmlcomm.prio.ticket_fsdp(model)
    steps = [_gathers_of_a_step(model, rank) for _ in range(2)]
    first.set_modules_to_forward_prefetch([b, a])  # `block` comes before them
    block.set_modules_to_backward_prefetch([a, b])
    steps.append(_gathers_of_a_step(model, rank))
    first.set_modules_to_forward_prefetch([])
    block.set_modules_to_backward_prefetch([])
    steps.append(_gathers_of_a_step(model, rank))
    return steps


def _grouped(rank, n):
    """Of two modules that are gathered together, and of a third."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    fully_shard([model[0], model[2]], mesh=init_device_mesh("cpu", (n,)))
    fully_shard(model[1], mesh=init_device_mesh("cpu", (n,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (n,)))
    dmlcomm.prio.ticket_fsdp(model)
    return _gathers_of_a_step(model, rank)


def _sharded_and_compiled_as_one_graph(rank, n):
    """The error says what to do, and that helps."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def sharded(model):
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        dmlcomm.prio.ticket_fsdp(model)
        return model

    mesh = init_device_mesh("cpu", (n,))
    compiled = functools.partial(torch.compile, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"prio.ticket_fsdp learns .* or give fully_shard what"):
        _train(compiled(sharded(_model())), rank, steps=1)
    model = _model()
    model.layers = nn.ModuleList(compiled(layer) for layer in model.layers)
    _train(sharded(model), rank, steps=2)


def _fully_sharded(rank, n):
    _weights_and_tickets(rank, n)
    _sharded_and_compiled_as_one_graph(rank, n)
    return _orders(rank, n), _grouped(rank, n)


def test_fsdp2_with_tickets_gives_the_same_weights_and_goes_by_its_order_of_prefetching():
    of = _Tree
    for orders, grouped in run_ranks(_fully_sharded, 4, deadline_s=150):
        # The block reads its own weights before, and again after, those of its parts.
        forward = [(of.FIRST, 1), (of.BLOCK, 2), (of.A, 3), (of.B, 4)]
        backward = [(of.BLOCK, 0), (of.B, 1), (of.A, 2), (of.FIRST, 3)]
        assert orders[0] == orders[1] == orders[3] == forward + backward
        forward = [(of.FIRST, 1), (of.B, 3), (of.A, 4), (of.BLOCK, 2)]
        backward = [(of.BLOCK, 0), (of.A, 1), (of.B, 2), (of.FIRST, 3)]
        assert orders[2] == forward + backward
        assert grouped[:2] == [(2 * of.FIRST, 1), (of.FIRST, 2)]


def test_fsdp2_is_needed_for_its_tickets():
    with pytest.raises(ValueError, match="fully_shard"):
        dmlcomm.prio.ticket_fsdp(nn.Linear(1, 1))
