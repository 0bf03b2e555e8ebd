"""The parts of `dmlcomm.prio` that need no ranks."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dmlcomm.prio import schedule_choice
from dmlcomm.prio.agreement import EARLY, Agreement, positions_of
from dmlcomm.prio.arrivals import Arrivals
from dmlcomm.prio.ddp_hook import DdpModuleHook
from dmlcomm.prio.forward_order import ForwardOrder, ticket_at
from dmlcomm.prio.fused_group import FusedGroup
from dmlcomm.prio.grouping import make_groups
from dmlcomm.prio.optimizer_part import OptimizerPart, options_of
from dmlcomm.prio.updates import DeferredUpdates


def _order_of(model, *inputs):
    """Names of the parameters in the order in which a forward pass reads them."""
    order = ForwardOrder(model, DdpModuleHook)
    model(*inputs)
    order.stop()
    names = {parameter: name for name, parameter in model.named_parameters()}
    places = order.positions()
    return [names[parameter] for parameter in sorted(places, key=lambda p: places[p])]


class _Wait(nn.Module):
    """Has a parameter, and reads it by no function of torch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x


class _Turned(nn.Module):
    """Runs its modules from the last to the first."""

    def __init__(self, *modules):
        super().__init__()
        self.layers = nn.ModuleList(modules)

    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        return x


def test_order_is_that_of_the_forward_pass():
    model = _Turned(nn.Linear(3, 3), nn.Linear(3, 3, bias=False), _Wait())
    assert _order_of(model, torch.ones(2, 3)) == [
        "layers.2.weight",
        "layers.1.weight",
        "layers.0.weight",
        "layers.0.bias",
    ]


def test_places_are_among_the_parameters_that_are_trained():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    head = list(model[2].parameters())
    order = ForwardOrder(model, DdpModuleHook)
    model(torch.zeros(4))
    order.stop()
    positions = positions_of(head, [True, True], order)
    assert positions == [0, 1]
    assert Agreement([1, 0], positions).has_reads
    unread = positions_of([nn.Parameter(torch.zeros(1))], [True], order)
    assert unread == [EARLY]
    assert not Agreement([0], unread).has_reads


def test_a_shared_parameter_counts_where_it_is_read_first():
    first, middle, last = nn.Linear(3, 3, bias=False), _Wait(), nn.Linear(3, 3, bias=False)
    last.weight = first.weight
    assert _order_of(nn.Sequential(first, middle, last), torch.ones(2, 3)) == [
        "0.weight",
        "1.weight",
    ]


def test_a_module_reads_what_it_takes_from_others():
    attention = nn.MultiheadAttention(4, 1)
    model = nn.Sequential(_First(attention), nn.LSTM(4, 2))
    order = ForwardOrder(model, DdpModuleHook)
    model(torch.ones(2, 4))
    assert attention.out_proj.weight in set(order.reads()[attention])
    assert attention.out_proj not in order.reads()
    assert set(model[1].parameters()) == set(order.reads()[model[1]])
    order.stop()


class _First(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_what_compiled_modules_read_unseen_belongs_to_the_nearest_one_that_ran():
    model = nn.Sequential(_Wait())
    model[0].inner = nn.Linear(2, 2)
    order = ForwardOrder(model, DdpModuleHook)
    model(torch.ones(1))
    assert not order.assign(model[0].inner.weight)  # nothing is compiled: other code has read it
    order.stop()
    compiled = nn.Module()
    compiled._orig_mod = model  # as torch.compile does it
    order = ForwardOrder(compiled, DdpModuleHook)
    model(torch.ones(1))
    assert order.assign(model[0].inner.weight)
    assert model[0].inner.weight in set(order.reads()[model[0]])
    assert not order.assign(nn.Parameter(torch.ones(1)))
    order.stop()


def test_a_forward_pass_that_fails_ends_as_others_do():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(5, 3))
    order = ForwardOrder(model, DdpModuleHook)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 3))
    assert torch.overrides._get_current_function_mode_stack() == []
    model[0](torch.ones(2, 3))
    assert len(order.positions()) == 4
    order.stop()


class _Interrupted(nn.Module):
    """Its first forward pass is interrupted as Ctrl-C does it, for which torch calls no hooks."""

    def __init__(self):
        super().__init__()
        self.is_interrupted = False

    def forward(self, x):
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return x


class _Modes(nn.Module):
    """Notes the function modes while it runs, and how often."""

    def __init__(self, ends):
        super().__init__()
        self.ends, self.seen = ends, []

    def forward(self, x):
        self.ends()
        self.seen.append(len(torch.overrides._get_current_function_mode_stack()))
        return x


@pytest.mark.parametrize("begins_again", [True, False], ids=["next pass", "stop"])
def test_a_forward_pass_that_is_interrupted_ends_with_the_next_or_with_watching(begins_again):
    model = nn.Sequential(nn.Linear(3, 3), _Interrupted())
    order = ForwardOrder(model, DdpModuleHook)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 3))
    if begins_again:
        with torch.device("cpu"):  # a mode, too
            model(torch.ones(2, 3))
            assert len(torch.overrides._get_current_function_mode_stack()) == 1
    order.stop()
    assert torch.overrides._get_current_function_mode_stack() == []
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_watching_that_is_stopped_in_a_forward_pass_ends_with_it():
    model = nn.Sequential(_Modes(lambda: order.stop()), nn.Linear(3, 3))
    order = ForwardOrder(model, DdpModuleHook)
    model(torch.ones(2, 3))
    assert model[0].seen == [1]
    assert set(order.positions()) == set(model.parameters())
    assert torch.overrides._get_current_function_mode_stack() == []
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("size", [(), (5000,), (3, 5000), (2, 3, 40, 40)])
def test_changes_that_torch_does_not_count_are_seen_whatever_the_shape(size):
    weight = nn.Parameter(torch.ones(size))
    arrivals = Arrivals([weight], lambda _: "weight", passes=1)
    gradient = torch.full(size, 2.0)
    gradient.view(-1)[:1] = float("nan")  # of an overflow: it is equal to nothing
    (weight * gradient).sum().backward()
    assert arrivals.take(is_local=False) == [0]
    arrivals.check_unchanged()
    weight.grad.data.fill_(1.0)
    with pytest.raises(RuntimeError, match="gradient of weight was changed after backward"):
        arrivals.check_unchanged()


def test_tickets_are_places_until_there_are_too_many():
    assert [ticket_at(place, 3) for place in range(3)] == [0, 1, 2]
    many = [ticket_at(place, 1000) for place in range(1000)]
    assert many == sorted(many)
    assert (many[0], many[-1]) == (0, 255)


def test_groups_are_neighbours_of_one_kind_up_to_a_size():
    sizes = [4, 4, 4, 100, 1, 1]
    kinds = "aabaab"
    groups = make_groups([5, 4, 3, 2, 1, 0], sizes.__getitem__, kinds.__getitem__, 8)
    assert groups == [[4], [3], [5, 2], [1, 0]]
    assert make_groups([0, 1], sizes.__getitem__, kinds.__getitem__, 1) == [[0], [1]]
    groups = make_groups([5, 4, 3, 2, 1, 0], sizes.__getitem__, kinds.__getitem__, 8, first_bytes=1)
    assert groups == [[5], [4], [3], [2], [1, 0]]


class _Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **kwargs or {})


def test_small_gradients_beside_a_large_one_have_no_calls_of_their_own():
    called = []
    for count in (3, 40):
        weights = [nn.Parameter(torch.zeros(n)) for n in (2_000_000, *range(1, count))]
        group = FusedGroup(list(range(count)), weights, world_size=3)
        for weight in weights:
            weight.grad = torch.randn(weight.shape)
        assert group.large_numbers() == [0]
        group.take(0)
        with _Operations() as operations:
            group.fill([True] * count)
        called.append(operations.names)
        for weight, average in group.averages().items():
            assert torch.equal(average, weight.grad * (1 / 3))
    assert called[0] == called[1]


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ({"plain": 1.0, "cross": 0.9, "dear": 0.95}, "cross"),
        ({"plain": 1.0, "cross": 0.99, "dear": 0.99}, "plain"),
        ({"plain": 1.0, "cross": 1.5, "dear": 0.5}, "dear"),
    ],
)
@pytest.mark.parametrize("change", [0.9, 1.0, 1.1])
def test_the_fastest_schedule_is_kept_if_it_is_worth_it(seconds, kept, change):
    """Also while the machine becomes slower or faster, by a tenth per round; the first round, in
    which the usual one is slow, does not count, nor does a disturbance of one turn."""
    turns = [
        seconds[name] * change ** (i / len(schedule_choice.CANDIDATES))
        for i, name in enumerate(schedule_choice.TURNS)
    ]
    assert schedule_choice.choose(turns) == kept
    turns[0] *= 3
    turns[7] *= 3
    assert schedule_choice.choose(turns) == kept


def test_the_log_has_the_schedule_that_is_kept(monkeypatch):
    logged = []
    logger = SimpleNamespace(info=lambda text, *values: logged.append(text % values))
    monkeypatch.setattr(schedule_choice, "get_logger", lambda: logger)
    seconds = {"plain": 1.0, "cross": 0.9, "dear": 0.95}
    schedule_choice.choose([seconds[name] for name in schedule_choice.TURNS])
    (line,) = logged
    assert "plain 1000.00 ms, cross 0.900 times that, dear 0.950 times that: cross is kept" in line


class _Lost:
    """Communication that has failed."""

    def wait(self):
        raise RuntimeError("the peer is lost")


def test_an_update_that_failed_is_not_taken_for_made():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    group = FusedGroup([0], [weight], world_size=1)
    updates = DeferredUpdates(optimizer, [group], lambda _: "weight")
    updates.defer(options_of(optimizer))
    group.works = [_Lost()]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the peer is lost"):
            updates.flush()
        assert updates.stale


class _Counter(torch.optim.SGD):
    """Keeps a count outside of `state`, so it cannot update parameters one after the other."""

    count = 0

    def step(self, closure=None):
        super().step(closure)
        self.count += 1


def test_an_update_that_is_refused_is_made_once():
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = _Counter(weights, lr=1.0)
    groups = [FusedGroup([i], [w], world_size=1) for i, w in enumerate(weights)]
    for group, weight in zip(groups, weights, strict=True):
        weight.grad = torch.ones(3)
        group.fill([True, True])
    updates = DeferredUpdates(optimizer, groups, lambda _: "weight")
    updates.defer(options_of(optimizer))
    for expected in ([0, 1], [0, 0]):
        with pytest.raises(RuntimeError, match='changes its attribute "count"'):
            updates.flush()
        assert [weight[0].item() for weight in weights] == expected
    updates.flush()
    assert [weight[0].item() for weight in weights] == [0, 0]


class _Unread(dict):
    """Options that nobody may look at."""

    def keys(self):
        raise AssertionError("these options are of other parameters")

    items = values = __iter__ = keys


def test_an_update_looks_only_at_the_options_of_its_parameters():
    """Else a step takes parameter groups times groups of gradients: each layer may have a rate."""
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": [w], "lr": i} for i, w in enumerate(weights)])
    options = options_of(optimizer)
    options.groups[0] = _Unread(options.groups[0])
    for weight in weights:
        weight.grad = torch.ones(3)
    OptimizerPart(optimizer).step(options, dict.fromkeys(weights[1:]).keys())
    assert [w[0].item() for w in weights] == [1, 0, -1]


def test_times_are_compared_on_the_device_of_the_gradients(monkeypatch):
    class SentError(Exception):
        pass

    def send(tensor, *_, **__):
        raise SentError(tensor.device.type)

    monkeypatch.setattr(schedule_choice.dist, "all_reduce", send)
    choice = schedule_choice.ScheduleChoice(None, torch.device("meta"))
    with pytest.raises(SentError, match="meta"):
        while not choice.has_ended:
            choice.after_step()
