"""`dmlcomm.DistributedOptimizer` while groups, parameters, types or modules change, beside other
optimizers and threads, and with every optimizer of torch.

Ranks carry out several cases in one group, since most of a test is the start of processes.
"""

import contextlib
import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from dmlcomm.hooks import another_group
from dmlcomm.prio import schedule_choice
from helpers import run_ranks
from helpers.prio import (
    DEFERRED,
    OPTIMIZERS,
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


def _in_two_groups(parameters):
    parameters = list(parameters)
    groups = [{"params": parameters[:4]}, {"params": parameters[4:], "lr": 0.2}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def parameters_that_go_to_another_group(rank):
    """The order of all parameters stays the same."""

    def one_step(model, optimizer, rank, step):
        if step == 2:
            first, second = optimizer.param_groups
            first["params"].append(second["params"].pop(0))
        plain_step(model, optimizer, rank, step)

    assert_as_ddp(rank, one_step, make=_in_two_groups)


def parameters_that_are_frozen_with_gradients_of_zeros(rank):
    """Momentum goes on."""

    def one_step(model, optimizer, rank, step):
        if step == 2:
            getattr(model, "module", model).attention.requires_grad_(False)
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, rank, step).backward()
        optimizer.step()

    assert_as_ddp(rank, one_step)


def groups_of_frozen_parameters_that_are_added(rank):
    """And thawed later."""
    more = [nn.Parameter(torch.ones(3), requires_grad=False) for _ in range(2)]

    def one_step(model, optimizer, rank, step):
        if step == 2:
            optimizer.add_param_group({"params": more})
        optimizer.zero_grad()
        for p in more:
            p.requires_grad_(step == 4)
        (loss_of(model, rank, step) + more[0].sum()).backward()
        optimizer.step()

    for schedule in SCHEDULES:
        model = make_model()
        optimizer = wrapped(model, schedule=schedule)
        for p in more:
            p.data.fill_(1)
        for step in range(STEPS):
            one_step(model, optimizer, rank, step)
        optimizer.flush()
        assert_equal_bits(model, trained_with_ddp(rank), schedule)
        assert more[0].tolist() == pytest.approx([0.95] * 3)


def scripted_models(rank):
    """Their modules take no hooks."""

    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def train(model, optimizer):
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(rank + step))).square().mean().backward()
            optimizer.step()

    expected = DistributedDataParallel(make())
    train(expected, OPTIMIZERS["SGD"](expected.parameters()))
    model = torch.jit.script(make())
    train(model, wrapped(model, schedule="plain"))
    assert_equal_bits(model, expected)
    for schedule in (*DEFERRED, "auto"):
        with pytest.raises(ValueError, match=r'1 is TorchScript.*schedule="plain"'):
            wrapped(nn.Sequential(nn.Linear(4, 4), torch.jit.script(make())), schedule=schedule)


def models_of_another_type(rank):
    for schedule in DEFERRED:
        model, optimizer, expected = after_a_step(rank, schedule)
        model.half()
        with pytest.raises(RuntimeError, match=r"is torch.float16 on cpu now.*call flush\(\)"):
            model.state_dict()
        model.float()
        optimizer.flush()
        expected.half().float()  # the weights before the last update were rounded
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
        optimizer.flush()
        model.half()
        assert model.state_dict()["scale"].dtype == torch.float16


def process_groups_are_given_back(rank):
    before = len(c10d._world.pg_map)
    for schedule, number in (("plain", 1), ("cross", 1), ("auto", 2)):
        with wrapped(make_model(), schedule=schedule) as optimizer:
            assert len(c10d._world.pg_map) == before + number
            optimizer.zero_grad()
        assert len(c10d._world.pg_map) == before
        optimizer.close()  # once more changes nothing
    # Also if the optimizer cannot be made.
    model = make_model()
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    with pytest.raises(RuntimeError, match="parse"):
        wrapped(model, schedule="auto")
    assert len(c10d._world.pg_map) == before
    del model.sparse
    wrapped(model, schedule="auto").close()


def process_groups_that_some_ranks_make_alone(rank):
    """Afterwards all ranks make groups as before, and other threads do meanwhile."""
    with another_group._next_name("mine"), ThreadPoolExecutor(1) as thread:
        assert thread.submit(c10d._process_group_name, [0, 1], True).result() != "mine"
        assert c10d._process_group_name([0, 1], True) == "mine"
        assert c10d._process_group_name([0, 1], True) != "mine"
    alone = dist.new_group([0])
    if rank == 0:
        wrapped(make_model(), schedule="auto", process_group=alone).close()
    group = dist.new_group(timeout=timedelta(seconds=30))
    model = make_model()
    with wrapped(model, process_group=group) as optimizer:
        plain_step(model, optimizer, rank, 0)
    for used in (group, alone):
        if dist.get_rank(used) >= 0:
            dist.destroy_process_group(used)


def process_groups_have_the_options_of_the_users_group(rank):
    algorithm = "all_reduce=recursive_doubling"
    given = dmlcomm.Options(algorithm=algorithm, priority=1)
    group = dist.new_group(timeout=timedelta(seconds=33), pg_options=given)
    model = make_model()
    with dmlcomm.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, process_group=group
    ):
        own = list(c10d._world.pg_map)[-1]
        options = own._get_backend(torch.device("cpu")).options
        assert options._timeout == timedelta(seconds=33)
        assert (options.algorithm, options.priority) == (algorithm, 1)
    smaller = dist.split_group(group, [[0, 1]])
    options = smaller._get_backend(torch.device("cpu")).options
    assert (options.algorithm, options.priority) == (algorithm, 1)
    for used in (smaller, group):
        dist.destroy_process_group(used)


def modules_that_run_in_several_threads(rank):
    for schedule in DEFERRED:
        model, optimizer, expected = after_a_step(rank, schedule)
        failures = []

        def evaluate(model=model, failures=failures):
            try:
                for _ in range(5):
                    with torch.no_grad():
                        loss_of(model, 0, 0)
                assert torch.overrides._get_current_function_mode_stack() == []
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=evaluate) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert_equal_bits(model, expected, schedule)
        optimizer.close()
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def backward_passes_in_several_threads(rank):
    """As torch runs those of several devices: at the same time."""

    def train(model, optimizer, in_threads):
        for step in range(STEPS):
            optimizer.zero_grad()
            losses = [half(torch.full((2, 16), float(rank + step))).sum() for half in model]
            if in_threads:
                with ThreadPoolExecutor(len(losses)) as threads:  # which gives their errors, too
                    list(threads.map(torch.Tensor.backward, losses))
            else:
                for loss in losses:
                    loss.backward()
            optimizer.step()
        optimizer.close()
        return model

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for schedule in SCHEDULES:
            one, other = (nn.ModuleList([_layers(4), _layers(4)]) for _ in range(2))
            train(one, wrapped(one, schedule=schedule), in_threads=True)
            train(other, wrapped(other, schedule=schedule), in_threads=False)
            assert_equal_bits(one, other, schedule)
    finally:
        sys.setswitchinterval(before)


def two_networks_that_learn_from_each_other(rank):
    """The gradients of the generator go through the discriminator."""

    def make():
        torch.manual_seed(1)
        return nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def train(generator, discriminator, optimizers, no_sync):
        of_generator, of_discriminator = optimizers
        for step in range(STEPS):
            noise = torch.full((3, 4), float(rank + step))
            of_discriminator.zero_grad()
            fake = generator(noise).detach()
            (discriminator(fake).mean() - discriminator(noise).mean()).backward()
            of_discriminator.step()
            of_generator.zero_grad()
            with no_sync():
                discriminator(generator(noise)).mean().neg().backward()
            of_generator.step()

    expected = make()
    ddp = [DistributedDataParallel(network) for network in expected]
    train(*ddp, [OPTIMIZERS["Adam"](n.parameters()) for n in ddp], ddp[1].no_sync)
    for schedule in SCHEDULES:
        found = make()
        optimizers = [wrapped(n, OPTIMIZERS["Adam"], schedule) for n in found]
        train(*found, optimizers, optimizers[1].no_sync)
        for network, theirs, optimizer in zip(found, expected, optimizers, strict=True):
            optimizer.flush()
            assert_equal_bits(network, theirs, schedule)
    # Without no_sync the error says what to do.
    with pytest.raises(RuntimeError, match=r"another model's loss.*no_sync\(\)"):
        train(*found, optimizers, contextlib.nullcontext)


def two_optimizers_of_one_model(rank):
    def split(model):
        first = list(model.first.parameters())
        return first, [p for p in model.parameters() if p is not model.first.weight]

    def train(model, forward, optimizers):
        for step in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(forward, rank, step).backward()
            for optimizer in optimizers:
                optimizer.step()

    def make(model):
        first, rest = split(model)
        return torch.optim.SGD(first, lr=0.1), torch.optim.Adam(rest, lr=0.01)

    expected = make_model()
    train(expected, DistributedDataParallel(expected, find_unused_parameters=True), make(expected))
    for schedule in SCHEDULES:
        model = make_model()
        both = [dmlcomm.DistributedOptimizer(o, model, schedule=schedule) for o in make(model)]
        train(model, model, both)
        for optimizer in both:
            optimizer.close()
        assert_equal_bits(model, expected, schedule)


def blocks_without_sending_inside_others(rank):
    def ours(model, optimizer, rank, step):
        optimizer.zero_grad()
        with optimizer.no_sync():
            with optimizer.no_sync():
                loss_of(model, rank, 3 * step).backward()
            loss_of(model, rank, 3 * step + 1).backward()
        loss_of(model, rank, 3 * step + 2).backward()
        optimizer.step()

    def theirs(model, optimizer, rank, step):
        optimizer.zero_grad()
        with model.no_sync():
            for i in range(2):
                loss_of(model, rank, 3 * step + i).backward()
        loss_of(model, rank, 3 * step + 2).backward()
        optimizer.step()

    assert_as_ddp(rank, ours, theirs=theirs)


def steps_inside_of_a_module(rank):
    class Trainer(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def forward(self, step):
            plain_step(self.model, self.optimizer, rank, step)

    for schedule in DEFERRED:
        trainer = Trainer()
        trainer.optimizer = wrapped(trainer, schedule=schedule)
        for step in range(STEPS):
            trainer(step)
            assert torch.overrides._get_current_function_mode_stack() == []
        trainer.optimizer.close()
        assert_equal_bits(trainer.model, trained_with_ddp(rank), schedule)
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in trainer.modules())


def _layers(number=3):
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(number)))


def _layer_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()


def _updated_by_the_first_module(model, optimizer):
    """By layer, whether a step and a run of the first layer have updated it."""
    optimizer.flush()
    before = [layer.weight.detach().clone() for layer in model]
    _layer_step(model, optimizer)
    model[0](torch.ones(2, 16))
    found = [not torch.equal(w, layer.weight) for w, layer in zip(before, model, strict=True)]
    optimizer.flush()
    return found


def steps_before_the_first_forward_pass(rank):
    """As `torch.distributed.checkpoint` makes one, to have states."""
    for schedule in DEFERRED:
        for begin in (
            lambda model, optimizer: optimizer.step(),
            lambda model, optimizer: get_optimizer_state_dict(model, optimizer),
        ):
            model = _layers()
            optimizer = wrapped(model, OPTIMIZERS["Adam"], schedule)
            begin(model, optimizer)
            _layer_step(model, optimizer)
            assert _updated_by_the_first_module(model, optimizer) == [True, False, False]


def layers_that_are_added_are_waited_for_alone(rank):
    for schedule in DEFERRED:
        model = _layers()
        optimizer = wrapped(model, schedule=schedule)
        _layer_step(model, optimizer)
        model.append(_layers(1)[0])
        optimizer.add_param_group({"params": model[3].parameters()})
        for _ in range(2):  # the first shows that there are others, the second who reads them
            _layer_step(model, optimizer)
        assert _updated_by_the_first_module(model, optimizer) == [True, False, False, False]


def models_of_which_no_module_reads_a_parameter(rank):
    """The last one runs, though."""
    warnings = []
    with mock.patch("dmlcomm.prio.exchange.get_logger") as logger:
        logger().warning = lambda text, *values: warnings.append(text % values)
        model = _layers(1).append(nn.ReLU())
        optimizer = wrapped(model)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model[1](nn.functional.linear(torch.ones(2, 16), model[0].weight)).sum().backward()
            before = model[0].weight.detach().clone()
            optimizer.step()
            assert not torch.equal(before, model[0].weight)
    (line,) = warnings
    assert "no module read a parameter of this optimizer in 3 steps" in line


def weights_that_are_read_before_the_model_runs(rank):
    """From the first step on, by code outside of all modules."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.last = nn.Embedding(12, 8), nn.Linear(8, 12)

        def forward(self, x):
            return self.last(x)

    def train(weight, forward, optimizer):
        for step in range(STEPS):
            optimizer.zero_grad()
            tokens = torch.arange(4) + rank + step
            forward(nn.functional.embedding(tokens, weight)).square().mean().backward()
            if forward is ddp:  # which does not see the weight
                dist.all_reduce(weight.grad)
                weight.grad.mul_(0.5)
            optimizer.step()

    torch.manual_seed(1)
    expected = Model()
    expected.embedding.weight.requires_grad_(False)
    ddp = DistributedDataParallel(expected)
    expected.embedding.weight.requires_grad_(True)
    train(expected.embedding.weight, ddp, OPTIMIZERS["SGD"](expected.parameters()))
    for schedule in SCHEDULES:
        torch.manual_seed(1)
        model = Model()
        optimizer = wrapped(model, schedule=schedule)
        train(model.embedding.weight, model, optimizer)
        optimizer.flush()
        assert_equal_bits(model, expected, schedule)


CHANGES = [
    parameters_that_go_to_another_group,
    parameters_that_are_frozen_with_gradients_of_zeros,
    groups_of_frozen_parameters_that_are_added,
    scripted_models,
    models_of_another_type,
    process_groups_are_given_back,
    process_groups_that_some_ranks_make_alone,
    process_groups_have_the_options_of_the_users_group,
    modules_that_run_in_several_threads,
    backward_passes_in_several_threads,
    two_networks_that_learn_from_each_other,
    two_optimizers_of_one_model,
    blocks_without_sending_inside_others,
    steps_inside_of_a_module,
    steps_before_the_first_forward_pass,
    layers_that_are_added_are_waited_for_alone,
    models_of_which_no_module_reads_a_parameter,
    weights_that_are_read_before_the_model_runs,
]


def test_training_goes_on_when_something_changes():
    run_ranks(carry_out, 2, CHANGES, deadline_s=DEADLINE_S)


# --- every optimizer of torch, "auto", and states ------------------------------------------------


def optimizers_of_torch(rank):
    rates = {"Adadelta": 1.0, "Muon": 0.01}
    names = [
        name
        for name, found in vars(torch.optim).items()
        if isinstance(found, type)
        and issubclass(found, torch.optim.Optimizer)
        and name not in ("Optimizer", "LBFGS", "SparseAdam")  # they are refused, or of sparse ones
    ]
    assert len(names) >= 11
    for name in names:
        expected = None

        def make(parameters, name=name):
            parameters = list(parameters)
            if name == "Muon":  # of matrices only
                parameters = [p for p in parameters if p.dim() == 2]
            return getattr(torch.optim, name)(parameters, lr=rates.get(name, 0.01))

        for schedule in (None, *DEFERRED):
            model = make_model()
            for p in model.parameters() if name == "Muon" else ():
                p.requires_grad_(p.dim() == 2)
            if schedule is None:
                expected = model
                ddp = DistributedDataParallel(model, find_unused_parameters=True)
                forward, optimizer = ddp, make(model.parameters())
            else:
                forward, optimizer = model, wrapped(model, make, schedule)
            for step in range(4):
                plain_step(forward, optimizer, rank, step)
            if schedule is not None:
                optimizer.close()
                assert_equal_bits(model, expected, name, schedule)


def fused_optimizers_that_scale_themselves(rank):
    def make(parameters):
        return torch.optim.AdamW(parameters, lr=0.01, fused=True)

    def prepare(optimizer):
        return (torch.amp.GradScaler("cpu", init_scale=1024.0),)

    def one_step(model, optimizer, rank, step, scaler):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, rank, step)).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        scaler.step(optimizer)
        scaler.update()

    assert_as_ddp(rank, one_step, make=make, prepare=prepare)


def accumulation_clipping_and_scaling(rank):
    """All at once, with a last window that is shorter; "auto" tries all its schedules meanwhile."""
    steps = 1 + 7 * 2 + 3

    def passes(step):
        return 1 if step == steps - 1 else 2

    def theirs(model, optimizer, rank, step, scaler):
        optimizer.zero_grad()
        for i in range(passes(step)):
            is_last = i == passes(step) - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                scaler.scale(loss_of(model, rank, 2 * step + i)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    def ours(model, optimizer, rank, step, scaler):
        optimizer.zero_grad()
        for i in range(passes(step)):
            scaler.scale(loss_of(model, rank, 2 * step + i)).backward()
        optimizer.synchronize()  # also sends what has had fewer passes
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    def prepare(_):
        return (torch.amp.GradScaler("cpu", init_scale=1024.0),)

    expected = trained_with_ddp(rank, steps=steps, one_step=theirs, prepare=prepare)
    for schedule in (*SCHEDULES, "auto"):
        model = make_model()
        optimizer = wrapped(model, schedule=schedule, backward_passes_per_step=2)
        scaler = prepare(optimizer)[0]
        with _short_turns():
            for step in range(steps):
                ours(model, optimizer, rank, step, scaler)
        assert optimizer.schedule in (SCHEDULES if schedule == "auto" else [schedule])
        optimizer.close()
        assert_equal_bits(model, expected, schedule)


@contextlib.contextmanager
def _short_turns():
    turns = (*schedule_choice.CANDIDATES * 2, schedule_choice.CANDIDATES[0])
    with mock.patch.multiple(schedule_choice, TURNS=turns, STEPS=2, SKIPPED=1):
        yield


def one_group_is_left_when_a_schedule_is_chosen(rank):
    for kept in SCHEDULES:
        before = len(c10d._world.pg_map)
        model = make_model()
        optimizer = wrapped(model, schedule="auto")
        with _short_turns(), mock.patch.object(schedule_choice, "choose", lambda _, k=kept: k):
            for step in range(1 + 7 * 2):
                plain_step(model, optimizer, rank, step)
        assert optimizer.schedule == kept
        assert len(c10d._world.pg_map) == before + 1, kept
        model.branch.requires_grad_(False)  # all learn again, with the group that is left
        for step in range(3):
            plain_step(model, optimizer, rank, step)
        optimizer.close()
        assert len(c10d._world.pg_map) == before


def rates_and_momenta_that_change_in_each_step(rank):
    def prepare(optimizer):
        inner = getattr(optimizer, "_optimizer", optimizer)
        return (torch.optim.lr_scheduler.OneCycleLR(inner, 0.1, total_steps=STEPS + 1),)

    def one_step(model, optimizer, rank, step, scheduler):
        plain_step(model, optimizer, rank, step)
        scheduler.step()

    assert_as_ddp(rank, one_step, prepare=prepare)


def states_of_distributed_checkpoints(rank):
    for schedule in SCHEDULES:
        model, other = _layers(), _layers()
        optimizer, resumed = (wrapped(m, OPTIMIZERS["Adam"], schedule) for m in (model, other))
        for _ in range(3):
            _layer_step(model, optimizer)
        saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
        set_optimizer_state_dict(other, resumed, saved)
        other.load_state_dict(model.state_dict())
        for _ in range(3):
            _layer_step(model, optimizer)
            _layer_step(other, resumed)
        optimizer.close()
        resumed.close()
        assert_equal_bits(other, model, schedule)


OPTIMIZERS_AND_STATES = [
    optimizers_of_torch,
    fused_optimizers_that_scale_themselves,
    accumulation_clipping_and_scaling,
    one_group_is_left_when_a_schedule_is_chosen,
    rates_and_momenta_that_change_in_each_step,
    states_of_distributed_checkpoints,
]


def test_every_optimizer_with_scalers_clipping_accumulation_and_checkpoints():
    run_ranks(carry_out, 2, OPTIMIZERS_AND_STATES, deadline_s=DEADLINE_S)
