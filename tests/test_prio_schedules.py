"""The schedules of `dmlcomm.DistributedOptimizer`: which is chosen, and what is posted when."""

import contextlib
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dmlcomm.prio import reduction
from helpers import run_ranks
from helpers.prio import DEFERRED, trained_with_auto, wrapped

pytestmark = pytest.mark.xdist_group("prio_optimizer")

DEADLINE_S = 200


def _automatic(rank, n):
    return trained_with_auto(rank)


def test_ranks_choose_the_same_schedule():
    first, second = run_ranks(_automatic, 2, deadline_s=DEADLINE_S)
    assert first == second


def _layers():
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))


def _events_of_a_step(schedule):
    """What is posted in the second step, and when backward and step begin."""
    model = _layers()
    optimizer = wrapped(model, schedule=schedule)
    events = []
    with contextlib.ExitStack() as stack:
        for name in ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"):
            original = getattr(dist, name)

            def post(*arguments, name=name, original=original, **options):
                events.append(name)
                return original(*arguments, **options)

            stack.enter_context(mock.patch.object(dist, name, post))
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 16)).sum()
            events[:] = ["backward"]
            loss.backward()
            events.append("step")
            optimizer.step()
    optimizer.flush()
    return events


def _updated_by_the_first_module(schedule):
    model = _layers()
    parameters = list(model.parameters())  # later they would be brought up to date
    optimizer = wrapped(model, schedule=schedule)
    optimizer.zero_grad()
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    before = [p.detach().clone() for p in parameters]
    model[0](torch.ones(2, 16))
    found = [not torch.equal(*pair) for pair in zip(before, parameters, strict=True)]
    optimizer.flush()
    return found


def _large_layers():
    """The last one is smaller than the first bucket of DDP, the others together smaller than the
    second one."""
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(520, 520) for _ in range(4)), nn.Linear(520, 10))


def _groups_of_plain():
    """What is posted in the second step: names of parameters."""
    model = _large_layers()
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = wrapped(model, schedule="plain", group_mb=None)
    posted = []
    original = reduction.AllReduce.post

    def post(self, group):
        posted.append({names[parameter] for parameter in group.parameters})
        original(self, group)

    with mock.patch.object(reduction.AllReduce, "post", post):
        for _ in range(2):
            posted.clear()
            optimizer.zero_grad()
            model(torch.ones(2, 520)).sum().backward()
            optimizer.step()
    return posted


def _buckets_of_ddp(scale):
    from benchmarks.prio.steps_rank import make_ddp

    model = _large_layers()
    names = {parameter: name for name, parameter in model.named_parameters()}
    ddp = DistributedDataParallel(model) if scale is None else make_ddp(model, scale)
    seen = []

    def hook(_, bucket):
        seen.append({names[parameter] for parameter in bucket.parameters()})
        found = torch.futures.Future()
        found.set_result(bucket.buffer())
        return found

    ddp.register_comm_hook(None, hook)
    for _ in range(2):
        seen.clear()
        ddp(torch.ones(2, 520)).sum().backward()
    return seen


def _schedules(rank, n):
    plain = _groups_of_plain()
    assert [len(found) for found in plain] == [4, 6]
    assert plain == _buckets_of_ddp(None) == _buckets_of_ddp(1.0)
    assert [len(found) for found in _buckets_of_ddp(0.03)] == [4, 2, 2, 2]
    groups = len(list(_layers().parameters()))
    reduces = ["backward", *["all_reduce"] * groups, "step"]
    assert _events_of_a_step("plain") == reduces
    assert _events_of_a_step("cross") == reduces
    scatters = ["backward", *["reduce_scatter_tensor"] * groups, "step"]
    assert _events_of_a_step("dear") == [*scatters, *["all_gather_into_tensor"] * groups]
    for schedule in DEFERRED:
        assert _updated_by_the_first_module(schedule) == [True, True, *[False] * (groups - 2)]


def test_gradients_leave_in_backward_and_a_module_waits_for_its_own_weights():
    run_ranks(_schedules, 1)


def _given_tickets(rank, n):
    """The tickets of the second step, in the order of gradients."""
    seen = []

    def note(number):
        seen.append(number)
        return contextlib.nullcontext()

    reduction.ticket = note
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)))
    optimizer = wrapped(model)
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
