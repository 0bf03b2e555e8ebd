"""What `dmlcomm.DistributedOptimizer` refuses, and how it goes on after an error."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from helpers import run_ranks
from helpers.prio import (
    DEFERRED,
    GROUP_MB,
    KINDS,
    ONE_GROUP_MB,
    SCHEDULES,
    STEPS,
    after_a_step,
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


def gradients_that_are_changed_too_early(rank):
    """And the way back."""
    models = []
    for schedule in SCHEDULES:
        model, optimizer, _ = after_a_step(rank, schedule)
        _loss_of_new_pass(model, optimizer, rank)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"was changed after backward.*synchronize\(\)"):
                optimizer.step()
        optimizer.synchronize()
        plain_step(model, optimizer, rank, 3)
        optimizer.flush()
        models.append(model)
    for model in models[1:]:
        assert_equal_bits(model, models[0])
    # In the first step nothing has been sent.
    model = make_model()
    optimizer = wrapped(model)
    _loss_of_new_pass(model, optimizer, rank)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with pytest.raises(RuntimeError, match="was changed after backward"):
        optimizer.step()
    plain_step(model, optimizer, rank, 0)


def gradients_of_some_that_are_changed_too_early(rank):
    """The parameters whose gradients came first in the first step have none later."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, is_short):
            return self.first(x) if is_short else self.last(self.first(x))

    model = Two()
    optimizer = wrapped(model, schedule="plain", group_mb=None)
    for is_short in (False, True):
        optimizer.zero_grad()
        model(torch.ones(2, 4), is_short).sum().backward()
        if is_short:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with pytest.raises(RuntimeError, match=r"first\.bias was changed after backward"):
                optimizer.step()
        else:
            optimizer.step()
    optimizer.synchronize()
    with pytest.raises(RuntimeError, match=r"after synchronize\(\)"):
        model(torch.ones(2, 4), True).sum().backward()


def gradients_that_are_changed_unseen_by_torch(rank):
    """Unscaled too early, and changed through `.data`: in the first step, and in a later one."""

    def unscale(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(loss_of(model, rank, 3)).backward()
        scaler.unscale_(optimizer)

    def halve(model, optimizer):
        loss_of(model, rank, 3).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.mul_(0.5)

    for schedule, group_mb in KINDS:
        for change in (unscale, halve):
            model = make_model()
            optimizer = wrapped(model, schedule=schedule, group_mb=group_mb)
            for end in (optimizer.synchronize, optimizer.step):
                optimizer.zero_grad()
                change(model, optimizer)
                with pytest.raises(RuntimeError, match=r"was changed after backward"):
                    end()
                optimizer.synchronize()
                plain_step(model, optimizer, rank, 0)


def names_that_were_given_are_those_of_errors(rank):
    model = make_model()
    optimizer = dmlcomm.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=[(f"mine.{name}", p) for name, p in model.named_parameters()],
        schedule="plain",
    )
    _loss_of_new_pass(model, optimizer, rank)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with pytest.raises(RuntimeError, match=r"gradient of mine\.\S+ was changed after backward"):
        optimizer.step()


def _loss_of_new_pass(model, optimizer, rank):
    optimizer.zero_grad()
    loss_of(model, rank, 3).backward()


def scalers_before_the_averages(rank):
    model = make_model()
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, rank, 0)).backward()
    with pytest.raises(RuntimeError, match=r"call synchronize\(\) before GradScaler"):
        scaler.step(optimizer)
    # The error leaves nothing of the scaler behind.
    optimizer.step()
    # Nobody has a gradient: there is nothing to be averaged.
    optimizer.zero_grad()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    plain_step(model, optimizer, rank, 1)


def more_backward_passes_than_were_said(rank):
    for options in ({}, {"schedule": "plain", "group_mb": ONE_GROUP_MB}):
        model = make_model()
        optimizer = wrapped(model, **options)
        plain_step(model, optimizer, rank, 0)
        optimizer.zero_grad()
        loss_of(model, rank, 0).backward()
        with pytest.raises(RuntimeError, match="backward_passes_per_step is 1"):
            loss_of(model, rank, 1).backward()
        with pytest.raises(RuntimeError, match="call step"):
            optimizer.zero_grad()


def backward_passes_between_averages_and_step(rank):
    for group_mb in (GROUP_MB, ONE_GROUP_MB):
        model = make_model()
        optimizer = wrapped(model, schedule="plain", group_mb=group_mb)
        plain_step(model, optimizer, rank, 0)
        _loss_of_new_pass(model, optimizer, rank)
        optimizer.synchronize()
        with pytest.raises(RuntimeError, match=r"after synchronize\(\)"):
            loss_of(model, rank, 1).backward()
        optimizer.zero_grad()
        plain_step(model, optimizer, rank, 1)


def weights_that_were_read_too_early(rank):
    """By code outside of the modules; first at once, then through a module that ran as well."""
    model, optimizer, _ = after_a_step(rank, "cross")
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"scale was read before its last update.*flush"):
        (model.scale.sum() ** 2).backward()
    optimizer.flush()
    (model.scale.sum() ** 2).backward()


def optimizers_and_models_that_cannot_work(rank):
    model = make_model()
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
    for passes in (0, 1.5):
        with pytest.raises(ValueError, match=f"backward_passes_per_step={passes}: expected"):
            wrap(sgd, model=model, backward_passes_per_step=passes)
    with pytest.raises(ValueError, match="group_mb=0"):
        wrap(sgd, model=model, group_mb=0)
    with wrap(sgd, model=model) as optimizer, pytest.raises(TypeError, match="its state_dict"):
        copy.deepcopy(optimizer)
    lazy = nn.LazyLinear(3)
    with pytest.raises(ValueError, match="has no shape yet"):
        wrap(torch.optim.SGD(lazy.parameters(), lr=0.1), model=lazy)
    empty = torch.optim.SGD([{"params": []}], lr=0.1)
    with pytest.raises(ValueError, match="SGD has no parameters, so there is nothing to measure"):
        wrap(empty, model=model, schedule="auto")
    for schedule in SCHEDULES:
        wrap(empty, model=model, schedule=schedule).close()
    sparse = nn.Embedding(4, 4, sparse=True)
    optimizer = wrap(torch.optim.SGD(sparse.parameters(), lr=0.1), model=sparse)
    with pytest.raises(RuntimeError, match="weight has a sparse gradient"):
        sparse(torch.arange(3)).sum().backward()
    del optimizer


class _Outer(torch.optim.SGD):
    """Leaves its updates to another optimizer."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.inner = torch.optim.SGD(parameters, lr=0.1)


def optimizers_of_optimizers(rank):
    model = make_model()
    outer = _Outer(list(model.parameters()))
    with pytest.raises(ValueError, match=r'_Outer leaves its updates to.*inner.*"plain"'):
        dmlcomm.DistributedOptimizer(outer, model=model)
    dmlcomm.DistributedOptimizer(outer, model=model, schedule="plain")


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
    model, expected = make_model(), make_model()
    optimizer = wrapped(model, _Counting)
    with pytest.raises(RuntimeError, match=r'_Counting changes its param_groups.*"plain"'):
        plain_step(model, optimizer, rank, 0)
    optimizer = wrapped(expected, _Counting, "plain")
    plain_step(expected, optimizer, rank, 0)
    assert optimizer.param_groups[0]["count"] == 1


class _Counter(torch.optim.SGD):
    """Keeps a count to itself."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.count = 0

    def step(self, closure=None):
        super().step(closure)
        self.count += 1


class _Lister(torch.optim.SGD):
    """Keeps a list."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.norms = []

    def step(self, closure=None):
        super().step(closure)
        self.norms.append(0.0)


class _Tallies(torch.optim.SGD):
    """Keeps tensors in a dictionary, and changes them in place."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.tallies = {"steps": torch.zeros(())}

    def step(self, closure=None):
        super().step(closure)
        self.tallies["steps"] += 1


class _NewKey(torch.optim.SGD):
    """Has an option that was not there before."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)

    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1


class _Options(torch.optim.SGD):
    """Changes an option in place."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["count"] = torch.zeros(())

    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["count"] += 1


class _All(torch.optim.SGD):
    """Does not look at its groups."""

    def __init__(self, parameters):
        parameters = list(parameters)
        super().__init__(parameters, lr=0.1)
        self.parameters = parameters

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.parameters:
            parameter.mul_(0.9)


def optimizers_that_do_not_work_in_parts(rank):
    for make, what in (
        (_Counter, 'its attribute "count"'),
        (_Lister, 'its attribute "norms"'),
        (_Tallies, 'its attribute "tallies"'),
        (_NewKey, "its param_groups"),
        (_Options, "its param_groups"),
        (_All, "other parameters than those of its param_groups"),
    ):
        model = make_model()
        optimizer = wrapped(model, make)
        with pytest.raises(RuntimeError, match=rf'{make.__name__} changes {what}.*"plain"'):
            plain_step(model, optimizer, rank, 0)
    # Has an attribute of its own, which counts for nothing.
    model = make_model()
    optimizer = wrapped(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True))
    plain_step(model, optimizer, rank, 0)
    optimizer.flush()


class _Normed(torch.optim.SGD):
    """Bounds the norm of all gradients, as LAMB does."""

    def __init__(self, parameters, max_norm=1e-3):
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.param_groups[0]["max_norm"] = max_norm

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, self.param_groups[0]["max_norm"])
        super().step(closure)


class _Shared(torch.optim.SGD):
    """Has a state of all parameters, which changes no weight yet."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.state["all"]["steps"] = 0

    def step(self, closure=None):
        super().step(closure)
        self.state["all"]["steps"] += 1


class _Noisy(torch.optim.SGD):
    """Draws random numbers, the same on all ranks."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)


def optimizers_that_mix_parameters(rank):
    """At the error the step of all parameters is made, and the next one raises, too."""
    for make, what in (
        (_Normed, "_Normed computes scale from several parameters"),
        (_Shared, "_Shared computes its state of 'all' from several"),
        (_Noisy, r"_Noisy draws random numbers in step\(\)"),
    ):
        expected = make_model()
        plain = wrapped(expected, make, "plain")
        models = [make_model() for _ in DEFERRED]
        optimizers = [wrapped(m, make, s) for m, s in zip(models, DEFERRED, strict=True)]
        for step in range(2):
            torch.manual_seed(step)
            plain_step(expected, plain, rank, step)
            for model, optimizer in zip(models, optimizers, strict=True):
                torch.manual_seed(step)
                with pytest.raises(RuntimeError, match=rf'{what}.*use schedule="plain"'):
                    plain_step(model, optimizer, rank, step)
                optimizer.flush()
                if make is not _Noisy:
                    assert_equal_bits(model, expected, make.__name__, step)


def optimizers_that_mix_parameters_later(rank):
    """In a step that is compared; and never if all parameters are in one group."""
    model = make_model()
    optimizer = wrapped(model, lambda parameters: _Normed(parameters, max_norm=1e6))
    plain_step(model, optimizer, rank, 0)
    optimizer.param_groups[0]["max_norm"] = 1e-3
    with pytest.raises(RuntimeError, match=r'_Normed computes.*use schedule="plain"'):
        plain_step(model, optimizer, rank, 1)
    expected = trained_with_ddp(rank, _Normed)
    for schedule in DEFERRED:
        model = make_model()
        optimizer = wrapped(model, _Normed, schedule, group_mb=ONE_GROUP_MB)
        for step in range(STEPS):
            plain_step(model, optimizer, rank, step)
        optimizer.flush()
        assert_equal_bits(model, expected, schedule)


def optimizers_that_the_user_has_written(rank):
    """Those that treat parameters alone are taken; and only some updates are compared."""
    seen = []

    class Own(torch.optim.AdamW):
        def step(self, closure=None):
            seen.append(sum(len(group["params"]) for group in self.param_groups))
            super().step(closure)

    assert_as_ddp(rank, make=Own)
    seen.clear()
    model = make_model()
    optimizer = wrapped(model, Own)
    count = len(list(model.parameters()))
    at_once = []
    for step in range(9):
        plain_step(model, optimizer, rank, step)
        optimizer.flush()
        at_once += [step + 1] * seen.count(count)
        seen.clear()
    assert at_once == [1, 2, 4, 8]


REFUSALS = [
    gradients_that_are_changed_too_early,
    gradients_of_some_that_are_changed_too_early,
    gradients_that_are_changed_unseen_by_torch,
    names_that_were_given_are_those_of_errors,
    scalers_before_the_averages,
    more_backward_passes_than_were_said,
    backward_passes_between_averages_and_step,
    weights_that_were_read_too_early,
    optimizers_and_models_that_cannot_work,
    optimizers_with_state_in_their_groups,
    optimizers_of_optimizers,
    optimizers_that_do_not_work_in_parts,
    optimizers_that_mix_parameters,
    optimizers_that_mix_parameters_later,
    optimizers_that_the_user_has_written,
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
    carry_out(rank, n, REFUSALS)
    _fsdp_is_refused(rank, n)


def test_refusals_say_what_to_do():
    run_ranks(_refuse, 2, deadline_s=DEADLINE_S)
