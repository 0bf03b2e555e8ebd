"""What trains on the backend: DDP and its options, FSDP2, ZeRO, checkpoints, DTensor, compile.

Each test computes twice, with dmlcomm and without any communication (one process that sees
all the data), and compares.
"""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from helpers import run_ranks

STEPS = 4


class _Model(torch.nn.Module):
    """Small, with parameters of odd sizes and a branch that can be left out."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(7, 13)
        self.branch = torch.nn.Linear(13, 13)
        self.last = torch.nn.Linear(13, 3)

    def forward(self, x, use_branch=True):
        x = torch.relu(self.first(x))
        if use_branch:
            x = x + self.branch(x)
        return self.last(x)


def _model():
    torch.manual_seed(1)
    return _Model()


def _batch(rank, step, rows=8):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 7, generator=generator), torch.randn(rows, 3, generator=generator)


def _train(model, optimizer, batches, **kwargs):
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x, **kwargs), y).backward()
        optimizer.step()


def _reference(n, make_optimizer, **kwargs):
    """One process that sees every rank's rows."""
    model = _model()
    batches = []
    for step in range(STEPS):
        parts = [_batch(rank, step) for rank in range(n)]
        batches.append(tuple(torch.cat(part) for part in zip(*parts, strict=True)))
    _train(model, make_optimizer(model.parameters()), batches, **kwargs)
    return model


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def _assert_same_parameters(model, reference, **tolerance):
    expected = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.").removeprefix("_orig_mod.").removeprefix("module.")
        torch.testing.assert_close(parameter.detach(), expected[name].detach(), **tolerance)


def _ddp(rank, n, options, kwargs):
    model = DistributedDataParallel(_model(), bucket_cap_mb=0.0005, **options)
    _train(model, _sgd(model.parameters()), [_batch(rank, s) for s in range(STEPS)], **kwargs)
    _assert_same_parameters(model, _reference(n, _sgd, **kwargs))


@pytest.mark.parametrize(
    ("options", "kwargs"),
    [
        ({}, {}),
        ({"find_unused_parameters": True}, {"use_branch": False}),
        ({"static_graph": True}, {}),
        ({"gradient_as_bucket_view": True}, {}),
    ],
    ids=["plain", "unused parameters", "static graph", "bucket view"],
)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_ddp(transport, options, kwargs):
    run_ranks(_ddp, 3, options, kwargs, env={"DMLCOMM_TRANSPORT": transport})


def _ddp_with_hook(rank, n, hook):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = DistributedDataParallel(_model())
    tolerance = {}
    if hook == "allreduce":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif hook == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        tolerance = {"rtol": 0.05, "atol": 0.02}
    elif hook == "c++ allreduce":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    else:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=8, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        tolerance = {"rtol": 0.3, "atol": 0.1}
    _train(model, _sgd(model.parameters()), [_batch(rank, s) for s in range(STEPS)])
    _assert_same_parameters(model, _reference(n, _sgd), **tolerance)


@pytest.mark.parametrize("hook", ["allreduce", "bf16", "c++ allreduce", "powerSGD"])
def test_ddp_comm_hooks(hook):
    run_ranks(_ddp_with_hook, 2, hook)


def _ddp_join(rank, n):
    """Ranks with different numbers of batches."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(_model())
    optimizer = _sgd(model.parameters())
    with Join([model]):
        _train(model, optimizer, [_batch(rank, step) for step in range(2 + rank)])
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    others = [torch.empty_like(parameters) for _ in range(n)]
    dist.all_gather(others, parameters)
    assert all(torch.equal(parameters, other) for other in others)


def test_ddp_join():
    run_ranks(_ddp_join, 3)


def _ddp_no_sync(rank, n):
    model = DistributedDataParallel(_model())
    reference = _model()
    for step in range(2):
        with model.no_sync() if step == 0 else contextlib.nullcontext():
            x, y = _batch(rank, step)
            torch.nn.functional.mse_loss(model(x), y).backward()
        for r in range(n):
            x, y = _batch(r, step)
            (torch.nn.functional.mse_loss(reference(x), y) / n).backward()
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


def test_ddp_no_sync():
    run_ranks(_ddp_no_sync, 2)


def _ddp_compiled(rank, n):
    model = torch.compile(DistributedDataParallel(_model()), backend="aot_eager")
    _train(model, _sgd(model.parameters()), [_batch(rank, s) for s in range(STEPS)])
    _assert_same_parameters(model, _reference(n, _sgd))


def test_ddp_under_torch_compile():
    run_ranks(_ddp_compiled, 2, deadline_s=150)


def _fsdp2(rank, n, reduce_dtype):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (n,))
    model = _model()
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for layer in model.children():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    _train(model, _sgd(model.parameters()), [_batch(rank, s) for s in range(STEPS)])
    reference = dict(_reference(n, _sgd).named_parameters())
    tolerance = {} if reduce_dtype is None else {"rtol": 0.05, "atol": 0.02}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor().detach()
        torch.testing.assert_close(full, reference[name].detach(), **tolerance)


@pytest.mark.parametrize("reduce_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("world_size", [2, 3])
def test_fsdp2(world_size, reduce_dtype):
    run_ranks(_fsdp2, world_size, reduce_dtype)


def _zero(rank, n):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.01)

    model = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    _train(model, optimizer, [_batch(rank, s) for s in range(STEPS)])
    _assert_same_parameters(model, _reference(n, adam))
    optimizer.consolidate_state_dict(to=0)


def test_zero_redundancy_optimizer():
    run_ranks(_zero, 2)


def _dtensor(rank, n):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("outer", "inner"))
    torch.manual_seed(0)
    a, b = torch.randn(6, 10), torch.randn(10, 4)
    left = distribute_tensor(a, mesh, [Shard(0), Replicate()])
    right = distribute_tensor(b, mesh, [Replicate(), Shard(1)])
    product = left @ right
    torch.testing.assert_close(product.full_tensor(), a @ b)
    swapped = product.redistribute(mesh, [Shard(1), Shard(0)])
    torch.testing.assert_close(swapped.full_tensor(), a @ b)
    inner = mesh["inner"]
    summed = distribute_tensor(a, inner, [Shard(1)]) @ distribute_tensor(b, inner, [Shard(0)])
    assert summed.placements == (Partial(),)
    scattered = summed.redistribute(inner, [Shard(0)])
    torch.testing.assert_close(scattered.full_tensor(), a @ b)


def test_dtensor():
    run_ranks(_dtensor, 4)


def _functional(rank, n):
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    x = torch.arange(4.0 * n) + rank
    total = sum(torch.arange(4.0 * n) + r for r in range(n))
    assert torch.equal(functional.all_reduce(x, "sum", group).wait(), total)
    gathered = functional.all_gather_tensor(x, 0, group).wait()
    assert torch.equal(gathered, torch.cat([torch.arange(4.0 * n) + r for r in range(n)]))
    part = functional.reduce_scatter_tensor(x, "avg", 0, group).wait()
    torch.testing.assert_close(part, total[4 * rank : 4 * rank + 4] / n)
    assert torch.equal(functional.broadcast(x, 0, group).wait(), torch.arange(4.0 * n))
    swapped = functional.all_to_all_single(x, None, None, group).wait()
    expected = [torch.arange(4.0 * n)[4 * rank : 4 * rank + 4] + r for r in range(n)]
    assert torch.equal(swapped, torch.cat(expected))
    two = functional.all_reduce_coalesced([x, x * 2], "max", group)
    assert torch.equal(two[1].wait(), (torch.arange(4.0 * n) + n - 1) * 2)
    two = functional.all_gather_into_tensor_coalesced([x, x[:3]], group)
    assert torch.equal(two[1].wait(), torch.cat([torch.arange(3.0) + r for r in range(n)]))


def _functional_compiled(rank, n):
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x):
        y = functional.all_reduce(x * 2, "sum", group)
        return functional.all_gather_tensor(y + 1, 0, group) * 3

    expected = torch.full((4 * n,), (2.0 * n + 1) * 3)
    assert torch.equal(step(torch.ones(4)), expected)


@pytest.mark.parametrize("function", [_functional, _functional_compiled])
def test_functional_collectives(function):
    run_ranks(function, 2, deadline_s=120)


def _checkpoint(rank, n, directory):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (n,))
    model = fully_shard(_model(), mesh=mesh)
    expected = copy.deepcopy(_model().state_dict())
    dcp.save(get_model_state_dict(model), checkpoint_id=directory)
    torch.manual_seed(5)
    other = fully_shard(_Model(), mesh=mesh)
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=directory)
    set_model_state_dict(other, state)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter.full_tensor().detach(), expected[name])


def test_distributed_checkpoint(tmp_path):
    run_ranks(_checkpoint, 2, str(tmp_path))


def _debug_detail(rank, n):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert type(backend).__name__ == "_ProcessGroupWrapper"
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [n] * 3
    work = dist.all_reduce(tensor, async_op=True)
    work.get_future().wait()
    objects = [None] * n
    dist.all_gather_object(objects, rank)
    assert objects == list(range(n))
    dist.barrier()
    dist.all_gather_into_tensor(torch.empty(3 * n), tensor)
    model = DistributedDataParallel(_model())
    _train(model, _sgd(model.parameters()), [_batch(rank, s) for s in range(STEPS)])
    with pytest.raises(RuntimeError, match="mismatch"):
        dist.all_reduce(torch.ones(3 + rank))


def test_debug_mode_detail():
    run_ranks(_debug_detail, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
