"""`dmlcomm.DistributedOptimizer`: the same weights as DDP, and what it works with or refuses.

Ranks carry out several cases in one group, since most of a test is the start of processes.
"""

import contextlib
import copy
import gc
import io
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import dmlcomm
from helpers import run_ranks
from helpers.prio import (
    DEFERRED,
    GROUP_MB,
    KINDS,
    OPTIMIZERS,
    SCHEDULES,
    STEPS,
    after_a_step,
    as_they_are,
    assert_as_ddp,
    assert_equal_bits,
    carry_out,
    loss_of,
    make_model,
    plain_step,
    trained_with_ddp,
    wrapped,
)

pytestmark = pytest.mark.xdist_group("prio_optimizer")

DEADLINE_S = 200


def _equal_bits(rank, n, steps, schedules):
    for make in OPTIMIZERS.values():
        expected = trained_with_ddp(rank, make, steps)
        for schedule in schedules:
            model = make_model()
            optimizer = wrapped(model, make, schedule)
            for step in range(steps):
                plain_step(model, optimizer, rank, step)
            optimizer.flush()
            assert_equal_bits(model, expected, schedule)


@pytest.mark.parametrize(
    ("n", "schedules", "env"),
    [
        (2, SCHEDULES, {"DMLCOMM_TRANSPORT": "tcp"}),
        # Inside one host sums are in the order of ranks.
        (3, SCHEDULES, {}),
        (
            3,
            ("plain", "cross"),
            {"DMLCOMM_TRANSPORT": "tcp", "DMLCOMM_ALGORITHM": "all_reduce=recursive_doubling"},
        ),
    ],
    ids=["two", "three in memory", "three over TCP"],
)
def test_weights_after_100_steps_have_the_bits_of_ddp(n, schedules, env):
    run_ranks(_equal_bits, n, 100, schedules, env=env, deadline_s=DEADLINE_S)


# --- what works ----------------------------------------------------------------------------------


def schedulers_reach_every_update(rank):
    def prepare(optimizer):
        # Of the user's optimizer, not of what it is wrapped in.
        inner = getattr(optimizer, "_optimizer", optimizer)
        return (torch.optim.lr_scheduler.ExponentialLR(inner, 0.5),)

    def one_step(model, optimizer, rank, step, scheduler):
        plain_step(model, optimizer, rank, step)
        scheduler.step()

    assert_as_ddp(rank, one_step, prepare=prepare)
    # And of the wrapper.
    model = make_model()
    optimizer = wrapped(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(STEPS):
        one_step(model, optimizer, rank, step, scheduler)
    optimizer.flush()
    assert_equal_bits(model, trained_with_ddp(rank, one_step=one_step, prepare=prepare))


def gradients_are_accumulated(rank):
    def two_passes(model, optimizer, rank, step):
        optimizer.zero_grad()
        with getattr(model, "no_sync", contextlib.nullcontext)():
            loss_of(model, rank, 2 * step).backward()
        loss_of(model, rank, 2 * step + 1).backward()
        optimizer.step()

    def without_sending(model, optimizer, rank, step):
        optimizer.zero_grad()
        with optimizer.no_sync():
            loss_of(model, rank, 2 * step).backward()
        loss_of(model, rank, 2 * step + 1).backward()
        optimizer.step()

    expected = trained_with_ddp(rank, one_step=two_passes)
    assert_as_ddp(rank, without_sending, theirs=two_passes)
    model = make_model()
    optimizer = wrapped(model, backward_passes_per_step=2)
    for step in range(STEPS):
        two_passes(model, optimizer, rank, step)
    optimizer.flush()
    assert_equal_bits(model, expected)


def gradients_are_clipped(rank):
    def theirs(model, optimizer, rank, step):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        # The last rank has nothing to learn from in odd steps.
        (loss * 0 if rank and step % 2 else loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    def ours(model, optimizer, rank, step):
        optimizer.zero_grad()
        if not (rank and step % 2):
            loss_of(model, rank, step).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()

    assert_as_ddp(rank, ours, theirs=theirs)


def scaled_losses(rank):
    def prepare(optimizer):
        return (torch.amp.GradScaler("cpu", init_scale=1024.0),)

    def one_step(model, optimizer, rank, step, scaler):
        optimizer.zero_grad()
        # One rank has gradients that are not finite: all of them leave this step out.
        factor = float("inf") if rank and step == 1 else 1.0
        scaler.scale(loss_of(model, rank, step) * factor).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        if step % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1024 if step == 0 else 512)

    assert_as_ddp(rank, one_step, prepare=prepare)


def parameters_that_are_not_used(rank):
    def one_step(model, optimizer, rank, step):
        # By nobody, by all, by one rank.
        plain_step(model, optimizer, rank, step, branch=step in (2, 3) or (step == 4 and not rank))

    assert_as_ddp(rank, one_step)
    assert_as_ddp(rank, one_step, make=OPTIMIZERS["AdamW"])


def parameters_that_are_frozen_meanwhile(rank):
    def frozen(model):
        return getattr(model, "module", model).attention

    def ours(model, optimizer, rank, step):
        if step in (0, 2):
            frozen(model).requires_grad_(step == 2)
        plain_step(model, optimizer, rank, step)

    def theirs(model, optimizer, rank, step):
        # DDP does not see it, so it gets no gradient of the frozen ones.
        plain_step(model, optimizer, rank, step)

    for schedule in SCHEDULES:
        model = make_model()
        optimizer = wrapped(model, schedule=schedule)
        for step in range(STEPS):
            ours(model, optimizer, rank, step)
        optimizer.flush()
        # A DDP from each point in time on, with the same optimizer.
        expected = make_model()
        inner = OPTIMIZERS["SGD"](expected.parameters())
        for begin, end in ((0, 2), (2, STEPS)):
            expected.attention.requires_grad_(begin == 2)
            ddp = DistributedDataParallel(expected, find_unused_parameters=True)
            for step in range(begin, end):
                theirs(ddp, inner, rank, step)
        assert_equal_bits(model, expected, schedule)


def gradients_that_are_dropped_before_more_is_trained(rank):
    def ours(model, optimizer, rank, step):
        if step == 0:
            model.attention.requires_grad_(False)
            loss_of(model, rank, 0).backward()
            optimizer.zero_grad()
            model.attention.requires_grad_(True)
        plain_step(model, optimizer, rank, step)

    assert_as_ddp(rank, ours, theirs=plain_step)


def groups_of_parameters_that_are_added(rank):
    for schedule in SCHEDULES:
        model, expected = make_model(), make_model()
        own, rest = [model.scale], [p for p in model.parameters() if p is not model.scale]
        inner = torch.optim.SGD(rest, lr=0.05)
        optimizer = dmlcomm.DistributedOptimizer(inner, model=model, schedule=schedule)
        reference = torch.optim.SGD(
            [p for p in expected.parameters() if p is not expected.scale], lr=0.05
        )
        ddp = DistributedDataParallel(expected, find_unused_parameters=True)
        for step in range(STEPS):
            if step == 2:
                optimizer.add_param_group({"params": own, "lr": 0.5})
                reference.add_param_group({"params": [expected.scale], "lr": 0.5})
            plain_step(model, optimizer, rank, step)
            expected.zero_grad()
            loss_of(ddp, rank, step).backward()
            reference.step()
            model.scale.grad = None
        optimizer.flush()
        assert_equal_bits(model, expected, schedule)


def mixed_precision(rank):
    def one_step(model, optimizer, rank, step):
        # The update of the last step is made inside, by the modules.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            optimizer.zero_grad()
            loss = loss_of(model, rank, step)
        loss.backward()
        optimizer.step()

    assert_as_ddp(rank, one_step, make=OPTIMIZERS["AdamW"])


def one_group_of_all_gradients(rank):
    expected = trained_with_ddp(rank)
    for schedule in SCHEDULES:
        model = make_model()
        optimizer = wrapped(model, schedule=schedule, group_mb=None)
        for step in range(STEPS):
            plain_step(model, optimizer, rank, step, branch=False)
        optimizer.flush()
        assert_equal_bits(model, expected, schedule)


def normalised_weights_and_frozen_statistics(rank):
    """Hooks that read weights before a module runs; a module in eval mode inside the others."""

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.utils.spectral_norm(nn.Linear(4, 6))
            self.norm = nn.BatchNorm1d(6)
            self.last = nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))

        def forward(self, x):
            return self.last(self.norm(self.first(x)))

    def train(model, optimizer, forward):
        model.norm.eval()
        for step in range(STEPS):
            optimizer.zero_grad()
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
            forward(x).square().mean().backward()
            optimizer.step()

    models = []
    for schedule in ("ddp", *SCHEDULES):
        torch.manual_seed(1)
        model = Normalised()
        if schedule == "ddp":
            optimizer = OPTIMIZERS["SGD"](model.parameters())
            train(model, optimizer, DistributedDataParallel(model))
        else:
            optimizer = wrapped(model, schedule=schedule, group_mb=1e-5)
            train(model, optimizer, model)
            optimizer.flush()
        models.append(model)
    for model in models[1:]:
        assert_equal_bits(model, models[0])


def closures_and_hooks_of_the_optimizer(rank):
    """Its own hooks, those of all optimizers, and a step in the place of its own."""
    seen = []

    def note(optimizer, *_):
        seen.append(sum(len(group["params"]) for group in optimizer.param_groups))

    def prepare(optimizer):
        inner = getattr(optimizer, "_optimizer", optimizer)
        inner.register_step_post_hook(note)
        return ()

    def replace(optimizer):
        inner = getattr(optimizer, "_optimizer", optimizer)
        own = inner.step

        def step(*arguments):
            note(inner)
            return own(*arguments)

        inner.step = step
        return ()

    def one_step(model, optimizer, rank, step):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, rank, step)
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0

    assert_as_ddp(rank, one_step, prepare=prepare)
    assert_as_ddp(rank, prepare=replace)
    handle = register_optimizer_step_post_hook(note)
    assert_as_ddp(rank)
    handle.remove()
    assert seen == [len(list(make_model().parameters()))] * (3 * STEPS * (1 + len(KINDS)))


def gradients_that_come_in_another_order_on_each_rank(rank):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x, turned):
            parts = [layer(x) for layer in (self.layers[::-1] if turned else self.layers)]
            return sum(parts[::-1] if turned else parts)

    for schedule in SCHEDULES:
        torch.manual_seed(1)
        model = Branches()
        optimizer = wrapped(model, schedule=schedule)
        for step in range(STEPS):
            optimizer.zero_grad()
            x = torch.full((2, 4), float(rank + step))
            model(x, turned=bool(rank) != bool(step % 2)).square().mean().backward()
            optimizer.step()
        optimizer.flush()
        total = torch.cat([p.detach().flatten() for p in model.parameters()])
        both = [torch.empty_like(total) for _ in range(2)]
        dist.all_gather(both, total)
        assert torch.equal(*both)


def a_compiled_model(rank):
    expected = trained_with_ddp(rank)
    model = make_model()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = wrapped(compiled)
    for step in range(STEPS):
        plain_step(compiled, optimizer, rank, step)
    optimizer.flush()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def a_model_compiled_as_one_graph(rank):
    """Its modules cannot wait, and the error says what to do."""
    expected = trained_with_ddp(rank)
    model = make_model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with (
        wrapped(compiled),
        pytest.raises(RuntimeError, match=r'without fullgraph=True, or use schedule="plain"'),
    ):
        loss_of(compiled, rank, 0)
    torch.compiler.reset()
    optimizer = wrapped(compiled, schedule="plain")
    for step in range(STEPS):
        plain_step(compiled, optimizer, rank, step)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def blocks_that_are_computed_again(rank):
    """In forward passes without gradients, too, which then wait for all weights."""
    models = []
    for schedule in SCHEDULES:
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        optimizer = wrapped(model, schedule=schedule, group_mb=1e-5)
        for step in range(STEPS):
            optimizer.zero_grad()
            x = torch.full((2, 4), float(rank + step), requires_grad=True)
            for layer in model:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
            x.square().mean().backward()
            optimizer.step()
        optimizer.flush()
        models.append(model)
    for model in models[1:]:
        assert_equal_bits(model, models[0])


def parameters_that_are_taken_away(rank):
    for schedule in SCHEDULES:
        model, optimizer, _ = after_a_step(rank, schedule)
        (group,) = optimizer.param_groups
        group["params"] = [p for p in group["params"] if p is not model.last.bias]
        optimizer.flush()
        before = model.last.bias.detach().clone()
        for step in (3, 4):
            plain_step(model, optimizer, rank, step)
            model.last.bias.grad = None
        optimizer.flush()
        assert torch.equal(model.last.bias, before)


def a_closed_optimizer_leaves_the_model_to_others(rank):
    for schedule in SCHEDULES:
        model, optimizer, expected = after_a_step(rank, schedule)
        with pytest.raises(ValueError, match=r"another DistributedOptimizer: call close\(\)"):
            wrapped(model, schedule=schedule)
        with optimizer:
            pass
        assert_equal_bits(model, expected, schedule)
        with pytest.raises(RuntimeError, match="it is closed"):
            optimizer.step()
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
        for _ in range(2):
            loss_of(model, rank, 0).backward()
        model.zero_grad()
        other = wrapped(model, schedule=schedule)
        plain_step(model, other, rank, 3)
        other.flush()


def models_are_freed(rank):
    for schedule, group_mb in KINDS:
        model = make_model()
        optimizer = wrapped(model, schedule=schedule, group_mb=group_mb)
        plain_step(model, optimizer, rank, 0)
        if schedule == "plain":  # also with a gradient that nobody has looked at
            model.scale.sum().backward()
        seen = weakref.ref(model), weakref.ref(model.scale)
        del model, optimizer
        gc.collect()
        assert [found() for found in seen] == [None, None], schedule


def gradients_after_a_step_are_those_of_this_rank(rank):
    for schedule in SCHEDULES:
        model, optimizer, _ = after_a_step(rank, schedule)
        optimizer.zero_grad()
        loss_of(model, rank, 3).backward()
        own = model.first.weight.grad.clone()
        optimizer.step()
        optimizer.flush()
        assert torch.equal(model.first.weight.grad, own), schedule


def operations_of_the_user_between_backward_and_step(rank):
    """Only one rank has a gradient of the branch, so ranks post at different times."""

    def one_step(model, optimizer, rank, step):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step, branch=rank == 0)
        loss.backward()
        losses = torch.tensor([0.0, 0.0])
        losses[rank] = loss.detach()
        dist.all_reduce(losses)
        assert losses[rank] == loss
        assert losses.all()
        optimizer.step()

    assert_as_ddp(rank, one_step)


def gradients_of_zeros_are_gradients(rank):
    """A branch that was used once has zeros afterwards: momentum goes on."""

    def one_step(model, optimizer, rank, step):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, rank, step, branch=step == 1).backward()
        optimizer.step()

    assert_as_ddp(rank, one_step)


WORKS = [
    schedulers_reach_every_update,
    gradients_are_accumulated,
    gradients_are_clipped,
    scaled_losses,
    parameters_that_are_not_used,
    operations_of_the_user_between_backward_and_step,
    gradients_of_zeros_are_gradients,
    parameters_that_are_frozen_meanwhile,
    gradients_that_are_dropped_before_more_is_trained,
    groups_of_parameters_that_are_added,
    mixed_precision,
    one_group_of_all_gradients,
    normalised_weights_and_frozen_statistics,
    closures_and_hooks_of_the_optimizer,
    gradients_that_come_in_another_order_on_each_rank,
    a_compiled_model,
    a_model_compiled_as_one_graph,
    blocks_that_are_computed_again,
    parameters_that_are_taken_away,
    a_closed_optimizer_leaves_the_model_to_others,
    models_are_freed,
    gradients_after_a_step_are_those_of_this_rank,
]


def test_works_like_ddp():
    run_ranks(carry_out, 2, WORKS, deadline_s=DEADLINE_S)


# --- who reads weights after a step --------------------------------------------------------------


def readers_see_the_last_step(rank):
    x = torch.arange(5)[None]
    names = [name for name, _ in make_model().named_parameters()]

    def saved(model):
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        return torch.load(file, weights_only=False).state_dict()

    def in_eval_mode(model):
        model.eval()
        model(x)
        return dict(as_they_are(model))

    def without_gradients(model):
        with torch.inference_mode():
            model(x)
        return dict(as_they_are(model))

    readers = {
        "state_dict": lambda model: model.state_dict(),
        "named_parameters": lambda model: dict(model.named_parameters()),
        "parameters": lambda model: dict(zip(names, model.parameters(), strict=True)),
        "parameters of a module": lambda model: {
            f"attention.{name}": value for name, value in model.attention.named_parameters()
        },
        "state_dict of a module": lambda model: {
            f"attention.{name}": value for name, value in model.attention.state_dict().items()
        },
        "deepcopy": lambda model: copy.deepcopy(model).state_dict(),
        "torch.save": saved,
        "eval": in_eval_mode,
        "inference mode": without_gradients,
    }
    for schedule in DEFERRED:
        for name, read in readers.items():
            model, _, expected = after_a_step(rank, schedule)
            values = expected.state_dict()
            for key, value in read(model).items():
                assert torch.equal(value, values[key]), (schedule, name, key)


def weights_that_are_loaded_stay(rank):
    for schedule in DEFERRED:
        model, optimizer, _ = after_a_step(rank, schedule)
        loaded = make_model()
        model.load_state_dict(loaded.state_dict())
        optimizer.flush()
        assert_equal_bits(model, loaded, schedule)


def weights_that_are_tied_later_are_up_to_date(rank):
    models = []
    for schedule in SCHEDULES:
        model, optimizer, _ = after_a_step(rank, schedule)
        model.branch.weight = model.attention.out_proj.weight
        plain_step(model, optimizer, rank, 3, branch=True)
        optimizer.flush()
        models.append(model)
    for model, schedule in zip(models, SCHEDULES, strict=True):
        assert_equal_bits(model, models[0], schedule)


def weights_of_modules_that_run_later_are_up_to_date(rank):
    """A module reads them from the third step on, in a sum, which keeps nothing for backward."""

    class Adds(nn.Module):
        def forward(self, x, other):
            return x if other is None else x + other

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.adds, self.owner = Adds(), nn.Linear(4, 4)

        def forward(self, x, is_read):
            return self.owner(self.adds(x, self.owner.bias if is_read else None))

    models = []
    for schedule in SCHEDULES:
        torch.manual_seed(1)
        model = Model()
        optimizer = wrapped(model, schedule=schedule, group_mb=1e-5)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(rank + step)), step > 1).square().mean().backward()
            optimizer.step()
        optimizer.flush()
        models.append(model)
    for model, schedule in zip(models, SCHEDULES, strict=True):
        assert_equal_bits(model, models[0], schedule)


def a_copy_of_the_model_is_a_model_of_its_own(rank):
    for schedule in DEFERRED:
        model, optimizer, _ = after_a_step(rank, schedule)
        other = copy.deepcopy(model)
        loss = loss_of(other, rank, 0)
        loss.backward()
        assert all(p.grad is None or p.grad.any() for p in other.parameters())
        plain_step(model, optimizer, rank, 3)
        other_optimizer = wrapped(other, schedule=schedule)
        plain_step(other, other_optimizer, rank, 3)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for another in (other, torch.load(file, weights_only=False), copy.deepcopy(other)):
            assert another.scale in set(another.parameters())
            assert not set(another.parameters()) & set(model.parameters())


def parameters_are_made_up_to_date_one_by_one(rank):
    """And not for the sake of gradients."""
    for schedule in DEFERRED:
        model, optimizer, expected = after_a_step(rank, schedule)

        def stale(model=model, expected=expected):
            pairs = zip(as_they_are(model), expected.parameters(), strict=True)
            return [name for (name, ours), theirs in pairs if not torch.equal(ours, theirs)]

        all_of_them = stale()
        assert len(all_of_them) > 4
        model.zero_grad()
        model.attention.zero_grad(set_to_none=False)
        optimizer.zero_grad()
        assert stale() == all_of_them
        assert "last.bias" in all_of_them
        assert torch.equal(next(iter(model.last.parameters())), expected.last.weight)
        assert 0 < len(stale()) < len(all_of_them)
        assert optimizer.state[model.scale]["momentum_buffer"].any()
        assert stale() == []
        torch.optim.SGD(model.parameters(), lr=0.1)
        plain_step(model, optimizer, rank, 3)
        optimizer.close()
        assert not any("named_parameters" in vars(module) for module in model.modules())


def parameters_that_a_model_gives_in_a_way_of_its_own(rank):
    """By an attribute of the object, which a shallow copy shares."""

    def last_first(recurse=True):
        return reversed(list(as_they_are(model)))

    *_, expected = trained_with_ddp(rank, steps=3).parameters()
    for schedule in DEFERRED:
        model = make_model()
        model.named_parameters = last_first
        used = [model]
        for given in used:
            with wrapped(given, schedule=schedule) as optimizer:
                for step in range(3):
                    plain_step(given, optimizer, rank, step)
                if given is model:
                    used.append(copy.copy(model))
                    assert torch.equal(next(model.parameters()), expected)
            assert given.named_parameters is last_first


def averages_of_weights_follow_every_step(rank):
    """Also of a compiled model, and where the model's `zero_grad` is called."""

    def train(schedule, uses_buffers):
        model = make_model()
        compiled = torch.compile(model, backend="eager") if uses_buffers else model
        optimizer = wrapped(compiled, schedule=schedule)
        averaged = AveragedModel(
            model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=uses_buffers
        )
        for step in range(STEPS):
            compiled.zero_grad()
            loss_of(compiled, rank, step).backward()
            optimizer.step()
            averaged.update_parameters(compiled)
        optimizer.close()
        return averaged

    for uses_buffers in (False, True):
        expected = train("plain", uses_buffers)
        for schedule in DEFERRED:
            assert_equal_bits(train(schedule, uses_buffers), expected, schedule, uses_buffers)


def one_rank_alone_may_read_weights(rank):
    for schedule in DEFERRED:
        model, optimizer, _ = after_a_step(rank, schedule)
        if rank == 0:
            model.eval()
            loss_of(model, rank, 0)
            model.train()
        dist.barrier()
        plain_step(model, optimizer, rank, 3)
        optimizer.flush()


def training_goes_on_from_a_checkpoint(rank):
    for schedule in SCHEDULES:
        for name, make in OPTIMIZERS.items():
            model = make_model()
            optimizer = wrapped(model, make, schedule)
            for step in range(3):
                plain_step(model, optimizer, rank, step)
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file)
            # The checkpoint is that of the plain optimizer.
            other = make_model()
            inner = make(other.parameters())
            inner.load_state_dict(copy.deepcopy(saved["optimizer"]))
            other.load_state_dict(saved["model"])
            resumed = dmlcomm.DistributedOptimizer(
                inner, model=other, schedule=schedule, group_mb=GROUP_MB
            )
            for step in range(3, 6):
                plain_step(model, optimizer, rank, step)
                plain_step(other, resumed, rank, step)
            # And back to the checkpoint, in the middle of training.
            optimizer.flush()
            resumed.flush()
            assert_equal_bits(model, other, schedule, name)
            expected = copy.deepcopy(other)
            optimizer.load_state_dict(saved["optimizer"])
            model.load_state_dict(saved["model"])
            for step in range(3, 6):
                plain_step(model, optimizer, rank, step)
            optimizer.flush()
            assert_equal_bits(model, expected, schedule, name)


READS = [
    readers_see_the_last_step,
    weights_that_are_loaded_stay,
    weights_that_are_tied_later_are_up_to_date,
    weights_of_modules_that_run_later_are_up_to_date,
    a_copy_of_the_model_is_a_model_of_its_own,
    parameters_are_made_up_to_date_one_by_one,
    parameters_that_a_model_gives_in_a_way_of_its_own,
    averages_of_weights_follow_every_step,
    one_rank_alone_may_read_weights,
    training_goes_on_from_a_checkpoint,
]


def test_weights_that_are_read_are_those_after_the_last_step():
    run_ranks(carry_out, 2, READS, deadline_s=DEADLINE_S)
