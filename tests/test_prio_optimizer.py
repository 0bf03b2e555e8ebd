"""`dmlcomm.DistributedOptimizer`: the same weights as DDP, and what it works with or refuses.

Ranks carry out several cases in one group, since most of a test is the start of processes.
"""

import contextlib
import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from helpers import run_ranks

pytestmark = pytest.mark.xdist_group("prio_optimizer")

DEADLINE_S = 200
GROUP_MB = 0.0005  # several groups
DEFERRED = ("cross", "dear")
SCHEDULES = ("plain", *DEFERRED)
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
STEPS = 5


class _Model(nn.Module):
    """Reads parameters in an order of its own: registered last, read first; an attention that reads
    the weights of its inner module; a weight that two modules share; one that it reads itself; and
    a branch that is used when `branch` says so."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 12)
        self.branch = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(8))
        self.first = nn.Embedding(12, 8)
        self.last.weight = self.first.weight

    def forward(self, tokens, branch=False):
        x = self.first(tokens)
        if branch:
            x = x + self.branch(x)
        x = x + self.attention(x, x, x, need_weights=False)[0] * self.scale
        return self.last(x)


def _model():
    torch.manual_seed(1)
    return _Model()


def _loss(model, rank, step, **options):
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, 12, (4, 5), generator=generator)
    found = model(tokens, **options)
    return nn.functional.cross_entropy(found.flatten(0, 1), tokens.roll(1, 1).flatten())


def _plain_step(model, optimizer, rank, step, **options):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    _loss(model, rank, step, **options).backward()
    optimizer.step()


def _ddp(rank, make=OPTIMIZERS["SGD"], steps=STEPS, one_step=_plain_step, prepare=None):
    """The weights that DDP gives. `prepare` makes what `one_step` is called with, too."""
    model = DistributedDataParallel(_model(), bucket_cap_mb=GROUP_MB, find_unused_parameters=True)
    optimizer = make(model.parameters())
    more = prepare(optimizer) if prepare else ()
    for step in range(steps):
        one_step(model, optimizer, rank, step, *more)
    return model.module


def _ours(model, make=OPTIMIZERS["SGD"], schedule="cross", **options):
    options = {"group_mb": GROUP_MB} | options
    optimizer = make(model.parameters())
    return dmlcomm.DistributedOptimizer(optimizer, model=model, schedule=schedule, **options)


def _assert_equal_bits(model, expected, *what):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs), (name, *what)


def _assert_as_ddp(rank, one_step=_plain_step, theirs=None, prepare=None, make=OPTIMIZERS["SGD"]):
    """All schedules give DDP's bits. `theirs` is DDP's step, where it differs."""
    expected = _ddp(rank, make, one_step=theirs or one_step, prepare=prepare)
    for schedule in SCHEDULES:
        model = _model()
        optimizer = _ours(model, make, schedule)
        more = prepare(optimizer) if prepare else ()
        for step in range(STEPS):
            one_step(model, optimizer, rank, step, *more)
        optimizer.flush()
        _assert_equal_bits(model, expected, schedule)


def _equal_bits(rank, n, steps, schedules):
    for make in OPTIMIZERS.values():
        expected = _ddp(rank, make, steps)
        for schedule in schedules:
            model = _model()
            optimizer = _ours(model, make, schedule)
            for step in range(steps):
                _plain_step(model, optimizer, rank, step)
            optimizer.flush()
            _assert_equal_bits(model, expected, schedule)


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
        _plain_step(model, optimizer, rank, step)
        scheduler.step()

    _assert_as_ddp(rank, one_step, prepare=prepare)
    # And of the wrapper.
    model = _model()
    optimizer = _ours(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(STEPS):
        one_step(model, optimizer, rank, step, scheduler)
    optimizer.flush()
    _assert_equal_bits(model, _ddp(rank, one_step=one_step, prepare=prepare))


def gradients_are_accumulated(rank):
    def two_passes(model, optimizer, rank, step):
        optimizer.zero_grad()
        with getattr(model, "no_sync", contextlib.nullcontext)():
            _loss(model, rank, 2 * step).backward()
        _loss(model, rank, 2 * step + 1).backward()
        optimizer.step()

    def without_sending(model, optimizer, rank, step):
        optimizer.zero_grad()
        with optimizer.no_sync():
            _loss(model, rank, 2 * step).backward()
        _loss(model, rank, 2 * step + 1).backward()
        optimizer.step()

    expected = _ddp(rank, one_step=two_passes)
    _assert_as_ddp(rank, without_sending, theirs=two_passes)
    model = _model()
    optimizer = _ours(model, backward_passes_per_step=2)
    for step in range(STEPS):
        two_passes(model, optimizer, rank, step)
    optimizer.flush()
    _assert_equal_bits(model, expected)


def gradients_are_clipped(rank):
    def theirs(model, optimizer, rank, step):
        optimizer.zero_grad()
        loss = _loss(model, rank, step)
        # The last rank has nothing to learn from in odd steps.
        (loss * 0 if rank and step % 2 else loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    def ours(model, optimizer, rank, step):
        optimizer.zero_grad()
        if not (rank and step % 2):
            _loss(model, rank, step).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()

    _assert_as_ddp(rank, ours, theirs=theirs)


def scaled_losses(rank):
    def prepare(optimizer):
        return (torch.amp.GradScaler("cpu", init_scale=1024.0),)

    def one_step(model, optimizer, rank, step, scaler):
        optimizer.zero_grad()
        # One rank has gradients that are not finite: all of them leave this step out.
        factor = float("inf") if rank and step == 1 else 1.0
        scaler.scale(_loss(model, rank, step) * factor).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        if step % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1024 if step == 0 else 512)

    _assert_as_ddp(rank, one_step, prepare=prepare)


def parameters_that_are_not_used(rank):
    def one_step(model, optimizer, rank, step):
        # By nobody, by all, by one rank.
        _plain_step(model, optimizer, rank, step, branch=step in (2, 3) or (step == 4 and not rank))

    _assert_as_ddp(rank, one_step)
    _assert_as_ddp(rank, one_step, make=OPTIMIZERS["AdamW"])


def parameters_that_are_frozen_meanwhile(rank):
    def frozen(model):
        return getattr(model, "module", model).attention

    def ours(model, optimizer, rank, step):
        if step in (0, 2):
            frozen(model).requires_grad_(step == 2)
        _plain_step(model, optimizer, rank, step)

    def theirs(model, optimizer, rank, step):
        # DDP does not see it, so it gets no gradient of the frozen ones.
        _plain_step(model, optimizer, rank, step)

    for schedule in SCHEDULES:
        model = _model()
        optimizer = _ours(model, schedule=schedule)
        for step in range(STEPS):
            ours(model, optimizer, rank, step)
        optimizer.flush()
        # A DDP from each point in time on, with the same optimizer.
        expected = _model()
        inner = OPTIMIZERS["SGD"](expected.parameters())
        for begin, end in ((0, 2), (2, STEPS)):
            expected.attention.requires_grad_(begin == 2)
            ddp = DistributedDataParallel(expected, find_unused_parameters=True)
            for step in range(begin, end):
                theirs(ddp, inner, rank, step)
        _assert_equal_bits(model, expected, schedule)


def groups_of_parameters_that_are_added(rank):
    for schedule in SCHEDULES:
        model, expected = _model(), _model()
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
            _plain_step(model, optimizer, rank, step)
            expected.zero_grad()
            _loss(ddp, rank, step).backward()
            reference.step()
            model.scale.grad = None
        optimizer.flush()
        _assert_equal_bits(model, expected, schedule)


def mixed_precision(rank):
    def one_step(model, optimizer, rank, step):
        # The update of the last step is made inside, by the modules.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            optimizer.zero_grad()
            loss = _loss(model, rank, step)
        loss.backward()
        optimizer.step()

    _assert_as_ddp(rank, one_step, make=OPTIMIZERS["AdamW"])


def one_group_of_all_gradients(rank):
    expected = _ddp(rank)
    for schedule in SCHEDULES:
        model = _model()
        optimizer = _ours(model, schedule=schedule, group_mb=None)
        for step in range(STEPS):
            _plain_step(model, optimizer, rank, step, branch=False)
        optimizer.flush()
        _assert_equal_bits(model, expected, schedule)


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
            optimizer = _ours(model, schedule=schedule, group_mb=1e-5)
            train(model, optimizer, model)
            optimizer.flush()
        models.append(model)
    for model in models[1:]:
        _assert_equal_bits(model, models[0])


def closures_and_hooks_of_the_optimizer(rank):
    seen = []

    def prepare(optimizer):
        inner = getattr(optimizer, "_optimizer", optimizer)
        inner.register_step_post_hook(lambda *_: seen.append(len(seen)))
        return ()

    def one_step(model, optimizer, rank, step):
        def closure():
            optimizer.zero_grad()
            loss = _loss(model, rank, step)
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0

    _assert_as_ddp(rank, one_step, prepare=prepare)
    assert len(seen) == STEPS * (1 + len(SCHEDULES))


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
        optimizer = _ours(model, schedule=schedule)
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
    expected = _ddp(rank)
    model = _model()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = _ours(compiled)
    for step in range(STEPS):
        _plain_step(compiled, optimizer, rank, step)
    optimizer.flush()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


WORKS = [
    schedulers_reach_every_update,
    gradients_are_accumulated,
    gradients_are_clipped,
    scaled_losses,
    parameters_that_are_not_used,
    parameters_that_are_frozen_meanwhile,
    groups_of_parameters_that_are_added,
    mixed_precision,
    one_group_of_all_gradients,
    normalised_weights_and_frozen_statistics,
    closures_and_hooks_of_the_optimizer,
    gradients_that_come_in_another_order_on_each_rank,
    a_compiled_model,
]


def _carry_out(rank, n, cases):
    for case in cases:
        case(rank)


def test_works_like_ddp():
    run_ranks(_carry_out, 2, WORKS, deadline_s=DEADLINE_S)


# --- who reads weights after a step --------------------------------------------------------------


def _after_a_step(rank, schedule):
    """(model, optimizer) whose updates are not made yet, and a model with all of them."""
    pairs = []
    for _ in range(2):
        model = _model()
        optimizer = _ours(model, schedule=schedule)
        for step in range(3):
            _plain_step(model, optimizer, rank, step)
        pairs.append((model, optimizer))
    pairs[1][1].flush()
    return *pairs[0], pairs[1][0]


def readers_see_the_last_step(rank):
    x = torch.arange(5)[None]

    def saved(model):
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        return torch.load(file, weights_only=False).state_dict()

    def in_eval_mode(model):
        model.eval()
        model(x)
        return dict(model.named_parameters())

    def without_gradients(model):
        with torch.inference_mode():
            model(x)
        return dict(model.named_parameters())

    readers = {
        "state_dict": lambda model: model.state_dict(),
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
            model, _, expected = _after_a_step(rank, schedule)
            values = expected.state_dict()
            for key, value in read(model).items():
                assert torch.equal(value, values[key]), (schedule, name, key)


def a_copy_of_the_model_is_a_model_of_its_own(rank):
    for schedule in DEFERRED:
        model, optimizer, _ = _after_a_step(rank, schedule)
        other = copy.deepcopy(model)
        loss = _loss(other, rank, 0)
        loss.backward()
        assert all(p.grad is None or p.grad.any() for p in other.parameters())
        _plain_step(model, optimizer, rank, 3)
        other_optimizer = _ours(other, schedule=schedule)
        _plain_step(other, other_optimizer, rank, 3)


def one_rank_alone_may_read_weights(rank):
    for schedule in DEFERRED:
        model, optimizer, _ = _after_a_step(rank, schedule)
        if rank == 0:
            model.eval()
            _loss(model, rank, 0)
            model.train()
        dist.barrier()
        _plain_step(model, optimizer, rank, 3)
        optimizer.flush()


def training_goes_on_from_a_checkpoint(rank):
    for schedule in SCHEDULES:
        for name, make in OPTIMIZERS.items():
            model = _model()
            optimizer = _ours(model, make, schedule)
            for step in range(3):
                _plain_step(model, optimizer, rank, step)
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file)
            # The checkpoint is that of the plain optimizer.
            other = _model()
            inner = make(other.parameters())
            inner.load_state_dict(copy.deepcopy(saved["optimizer"]))
            other.load_state_dict(saved["model"])
            resumed = dmlcomm.DistributedOptimizer(
                inner, model=other, schedule=schedule, group_mb=GROUP_MB
            )
            for step in range(3, 6):
                _plain_step(model, optimizer, rank, step)
                _plain_step(other, resumed, rank, step)
            # And back to the checkpoint, in the middle of training.
            optimizer.flush()
            resumed.flush()
            _assert_equal_bits(model, other, schedule, name)
            expected = copy.deepcopy(other)
            optimizer.load_state_dict(saved["optimizer"])
            model.load_state_dict(saved["model"])
            for step in range(3, 6):
                _plain_step(model, optimizer, rank, step)
            optimizer.flush()
            _assert_equal_bits(model, expected, schedule, name)


READS = [
    readers_see_the_last_step,
    a_copy_of_the_model_is_a_model_of_its_own,
    one_rank_alone_may_read_weights,
    training_goes_on_from_a_checkpoint,
]


def test_weights_that_are_read_are_those_after_the_last_step():
    run_ranks(_carry_out, 2, READS, deadline_s=DEADLINE_S)


# --- what is refused -----------------------------------------------------------------------------


def gradients_that_are_changed_too_early(rank):
    for schedule in SCHEDULES:
        model, optimizer, _ = _after_a_step(rank, schedule)
        _loss_of_new_pass(model, optimizer, rank)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with pytest.raises(RuntimeError, match=r"was changed after backward.*synchronize\(\)"):
            optimizer.step()


def _loss_of_new_pass(model, optimizer, rank):
    optimizer.zero_grad()
    _loss(model, rank, 3).backward()


def scalers_before_the_averages(rank):
    model = _model()
    optimizer = _ours(model)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(_loss(model, rank, 0)).backward()
    with pytest.raises(RuntimeError, match=r"call synchronize\(\) before GradScaler"):
        scaler.step(optimizer)


def more_backward_passes_than_were_said(rank):
    model = _model()
    optimizer = _ours(model)
    _loss(model, rank, 0).backward()
    with pytest.raises(RuntimeError, match="backward_passes_per_step is 1"):
        _loss(model, rank, 1).backward()
    with pytest.raises(RuntimeError, match="call step"):
        optimizer.zero_grad()


def backward_passes_between_averages_and_step(rank):
    for group_mb in (GROUP_MB, 25):  # all gradients in one group are not watched one by one
        model = _model()
        optimizer = _ours(model, schedule="plain", group_mb=group_mb)
        _plain_step(model, optimizer, rank, 0)
        _loss_of_new_pass(model, optimizer, rank)
        optimizer.synchronize()
        with pytest.raises(RuntimeError, match=r"after synchronize\(\)"):
            _loss(model, rank, 1).backward()
        optimizer.zero_grad()
        _plain_step(model, optimizer, rank, 1)


def weights_that_were_read_too_early(rank):
    """By code outside of the modules; first at once, then through a module that ran as well."""
    model, optimizer, _ = _after_a_step(rank, "cross")
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"scale was read before its last update.*flush"):
        (model.scale.sum() ** 2).backward()
    optimizer.flush()
    (model.scale.sum() ** 2).backward()


def optimizers_and_models_that_cannot_work(rank):
    model = _model()
    parameters = list(model.parameters())
    sgd = torch.optim.SGD(parameters, lr=0.1)
    wrap = dmlcomm.DistributedOptimizer
    with pytest.raises(ValueError, match=r"LBFGS computes the loss several times"):
        wrap(torch.optim.LBFGS(parameters), model=model)
    with pytest.raises(TypeError, match=r"expected a torch.optim.Optimizer, got Linear"):
        wrap(model.last, model=model)
    with pytest.raises(ValueError, match=r"a DistributedDataParallel, which synchronises"):
        wrap(sgd, model=DistributedDataParallel(model))
    with pytest.raises(ValueError, match="schedule='fast': expected one of plain, cross, dear"):
        wrap(sgd, model=model, schedule="fast")
    with pytest.raises(ValueError, match="give model="):
        wrap(sgd)
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        wrap(sgd, model=model, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="group_mb=0"):
        wrap(sgd, model=model, group_mb=0)
    with pytest.raises(TypeError, match="save its state_dict"):
        copy.deepcopy(wrap(sgd, model=model))
    sparse = nn.Embedding(4, 4, sparse=True)
    optimizer = wrap(torch.optim.SGD(sparse.parameters(), lr=0.1), model=sparse)
    with pytest.raises(RuntimeError, match="weight has a sparse gradient"):
        sparse(torch.arange(3)).sum().backward()
    del optimizer


class _Counting(torch.optim.SGD):
    """Keeps a count in its parameter groups, as some optimizers do."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["count"] = 0


def optimizers_with_state_in_their_groups(rank):
    model, expected = _model(), _model()
    optimizer = _ours(model, _Counting)
    _plain_step(model, optimizer, rank, 0)
    with pytest.raises(RuntimeError, match=r'_Counting changes its param_groups.*"plain"'):
        optimizer.flush()
    optimizer = _ours(expected, _Counting, "plain")
    _plain_step(expected, optimizer, rank, 0)
    assert optimizer.param_groups[0]["count"] == 1


REFUSALS = [
    gradients_that_are_changed_too_early,
    scalers_before_the_averages,
    more_backward_passes_than_were_said,
    backward_passes_between_averages_and_step,
    weights_that_were_read_too_early,
    optimizers_and_models_that_cannot_work,
    optimizers_with_state_in_their_groups,
]


def _fsdp_is_refused(rank, n):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model = fully_shard(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="a parameter is a DTensor"):
        dmlcomm.DistributedOptimizer(optimizer, model=model)
    # FSDP1 makes none on CPUs.
    model = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(model)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="FullyShardedDataParallel, which synchronises"):
        dmlcomm.DistributedOptimizer(optimizer, model=model)


def _refuse(rank, n):
    _carry_out(rank, n, REFUSALS)
    _fsdp_is_refused(rank, n)


def test_refusals_say_what_to_do():
    run_ranks(_refuse, 2, deadline_s=DEADLINE_S)


# --- schedules -----------------------------------------------------------------------------------


def _automatic(rank, n):
    steps = 40
    expected = _ddp(rank, steps=steps)
    model = _model()
    optimizer = _ours(model, schedule="auto")
    for step in range(steps):
        _plain_step(model, optimizer, rank, step)
    optimizer.flush()
    _assert_equal_bits(model, expected)
    return optimizer._exchange.is_deferred


def test_ranks_choose_the_same_schedule():
    assert len(set(run_ranks(_automatic, 2, deadline_s=DEADLINE_S))) == 1


def _given_tickets(rank, n):
    """The tickets of the second step, in the order of gradients."""
    from dmlcomm.prio import reduction

    seen = []

    def note(number):
        seen.append(number)
        return contextlib.nullcontext()

    reduction.ticket = note
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)))
    optimizer = _ours(model)
    for _ in range(2):
        seen.clear()
        optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
    optimizer.flush()
    return seen


def test_what_is_read_first_has_the_smallest_ticket():
    (seen,) = run_ranks(_given_tickets, 1)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0
    assert len(set(seen)) == len(seen) == 10
