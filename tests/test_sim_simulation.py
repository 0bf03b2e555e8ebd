"""Flows that come and go: against a plain event loop, against SimGrid, and by hand."""

import itertools
import math
import random

import networkx as nx
import pytest

from dmlcomm.sim import Simulation, max_min_rates
from helpers import simgrid_runs

MBIT = 1e6


class PlainSimulation:
    """The same, as simply as possible: all rates anew at every event."""

    def __init__(self, capacities, latencies):
        self.capacities, self.latencies = list(capacities), latencies
        self.tasks, self.changes, self.reroutes = [], [], []

    def flow(self, path, num_bytes, *, start_s=0.0, after=(), weight=1.0, priority=0):
        delay = sum(self.latencies[link] for link in path)
        self.tasks.append((delay, start_s, after, path, 8.0 * num_bytes, weight, priority))

    def compute(self, duration_s, *, start_s=0.0, after=()):
        self.tasks.append((duration_s, start_s, after, [], 0.0, 1.0, 0))

    def change_capacity(self, link, time_s, capacity, *, dark_s=0.0):
        self.changes += [(time_s, link, 0.0)] if dark_s else []
        self.changes.append((time_s + dark_s, link, capacity))

    def change_path(self, path, time_s, other):
        self.reroutes.append((time_s, tuple(path), other))

    def run(self):
        routes, reroutes = {}, sorted(self.reroutes, key=lambda c: c[0])
        now, capacities, changes = 0.0, self.capacities, sorted(self.changes, key=lambda c: c[0])
        ends, arrivals, left = {}, {}, {}  # by task: its end, when it enters the links, its bits
        while len(ends) < len(self.tasks):
            for task, (delay, start_s, after, *_) in enumerate(self.tasks):
                if task not in arrivals and all(other in ends for other in after):
                    arrivals[task] = max([start_s, *(ends[other] for other in after)]) + delay
            flows = sorted(left)
            specs = [self.tasks[flow] for flow in flows]
            rates = max_min_rates(
                [routes.get(tuple(path), path) for *_, path, _, _, _ in specs],
                capacities,
                [weight for *_, weight, _ in specs],
                [priority for *_, priority in specs],
            )
            times = [time for task, time in arrivals.items() if task not in ends | left]
            times += [change[0] for change in changes[:1] + reroutes[:1]]
            through = [
                now + left[flow] / rate if rate else math.inf
                for flow, rate in zip(flows, rates, strict=True)
            ]
            step, now = min(times + through) - now, min(times + through)
            for flow, rate, end in zip(flows, rates, through, strict=True):
                left[flow] -= rate * step
                if end <= now or left[flow] <= 1e-9 * self.tasks[flow][4]:
                    ends[flow] = now
                    del left[flow]
            while changes and changes[0][0] <= now:
                _, link, capacities[link] = changes.pop(0)
            while reroutes and reroutes[0][0] <= now:
                _, path, routes[path] = reroutes.pop(0)
            for task, time in arrivals.items():
                if task not in ends | left and time <= now:
                    bits = self.tasks[task][4]
                    if bits and self.tasks[task][3]:
                        left[task] = bits
                    else:
                        ends[task] = time
        return [ends[task] for task in range(len(self.tasks))]


def fill(simulations, rng, num_links, num_tasks):
    """The same random flows, computations and changes for all simulations."""
    paths = [rng.sample(range(num_links), rng.randint(0, min(4, num_links))) for _ in range(10)]
    for task in range(num_tasks):
        options = {
            "start_s": rng.choice((0.0, 0.0, rng.uniform(0, 2))),
            "after": rng.sample(range(task), min(task, rng.choice((0, 0, 1, 3)))),
        }
        if rng.random() < 0.2:
            duration = rng.uniform(0, 0.5)
            for simulation in simulations:
                simulation.compute(duration, **options)
            continue
        path, num_bytes = rng.choice(paths), rng.choice((0, 1, 10**6, rng.randint(1, 10**6)))
        options |= {"weight": rng.choice((1.0, 1.0, 0.3, 7.0)), "priority": rng.choice((0, 0, 9))}
        for simulation in simulations:
            simulation.flow(path, num_bytes, **options)
    for _ in range(rng.randint(0, 5)):
        change = rng.randrange(num_links), rng.uniform(0, 5), rng.uniform(1, 50) * MBIT
        dark_s = rng.choice((0.0, 0.2))
        for simulation in simulations:
            simulation.change_capacity(*change, dark_s=dark_s)
    for _ in range(rng.randint(0, 3)):
        path, other = rng.choices([path for path in paths if path] or [[0]], k=2)
        time_s = rng.uniform(0, 3)
        for simulation in simulations:
            simulation.change_path(path, time_s, other)


@pytest.mark.parametrize("seed", range(40))
def test_random_tasks_end_as_in_a_plain_event_loop(seed):
    rng = random.Random(seed)
    num_links = rng.choice((1, 3, 12))
    capacities = [rng.uniform(1, 100) * MBIT for _ in range(num_links)]
    latencies = [rng.choice((0.0, 0.01)) for _ in range(num_links)]
    simulation, plain = Simulation(capacities, latencies), PlainSimulation(capacities, latencies)
    fill([simulation, plain], rng, num_links, rng.choice((1, 10, 60)))
    outcome = simulation.run()
    assert outcome.ends_s == pytest.approx(plain.run(), rel=1e-6, abs=1e-9)
    assert outcome.makespan_s == max(outcome.ends_s)
    assert simulation.run() == outcome


@pytest.mark.parametrize(
    ("path", "ends"),
    # The second flow shares what the path has; or it waits until links are shared anew at 1 s.
    [([0], [1.5, 2.0]), ([0, 1], [1.0, 2.0])],
)
def test_links_are_shared_anew_once_in_the_resolution(path, ends):
    simulation = Simulation([8e6, 8e6])
    simulation.flow([0], 10**6)
    simulation.flow(path, 10**6, start_s=0.5)
    assert simulation.run(resolution_s=1).ends_s == pytest.approx(ends)
    with pytest.raises(ValueError, match="the run has the resolution -1: expected 0 to"):
        simulation.run(resolution_s=-1)


def test_a_change_of_a_link_or_path_does_not_wait_for_the_resolution():
    simulation = Simulation([8e6, 8e6, 8e6])
    simulation.flow([0], 10**6)
    simulation.flow([1], 10**6)
    simulation.flow([2], 10**6)
    simulation.change_capacity(0, 0.5, 1e6)
    simulation.change_capacity(1, 0.5, 8e6, dark_s=2)
    simulation.change_path([2], 0.5, [0])
    assert simulation.run(resolution_s=10).ends_s == pytest.approx([8.5, 3.0, 8.5])
    assert simulation.run().ends_s == pytest.approx([8.5, 3.0, 8.5])


def test_what_cannot_be_counted_is_refused():
    simulation = Simulation([1e9])
    for call in (
        lambda: simulation.flow([0], 1e308),
        lambda: simulation.compute(1e308),
        lambda: simulation.change_capacity(0, 1e308, 1e9),
        lambda: simulation.change_capacity(0, 1, 1e-300),
        lambda: Simulation([1e-300]),
    ):
        with pytest.raises(ValueError, match=r"expected 0(, or 1e-30| to 1e\+18)"):
            call()


@pytest.mark.parametrize("seed", range(10))
def test_a_resolution_makes_tasks_later_and_links_carry_no_more_than_they_can(seed):
    rng = random.Random(seed)
    capacities = [rng.uniform(1, 100) * MBIT for _ in range(5)]
    simulation = Simulation(capacities)
    for flow in range(100):
        after = rng.sample(range(flow), min(flow, rng.choice((0, 1))))
        simulation.flow(rng.sample(range(5), 2), rng.randint(1, 10**6), after=after)
    exact, coarse = simulation.run(), simulation.run(resolution_s=0.01)
    # A flow waits once to begin, and what others leave is unused for that long.
    assert coarse.makespan_s <= exact.makespan_s + 2 * 100 * 0.01
    assert coarse.ends_s != exact.ends_s
    for capacity, num_bytes in zip(capacities, coarse.link_bytes, strict=True):
        assert coarse.makespan_s * capacity >= 8 * num_bytes * (1 - 1e-6)
    assert simulation.run(resolution_s=1e-9).ends_s == pytest.approx(exact.ends_s, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_simgrid_ends_random_flows_alike(seed):
    rng = random.Random(seed)
    num_links = rng.choice((5, 40, 100))
    # SimGrid gives flows with longer latencies less: here all have the same.
    path_length, latency_s = rng.randint(1, 5), rng.choice((0.0, 1e-2))
    capacities = [rng.choice((1e8, 1e9, rng.uniform(1e7, 1e9))) for _ in range(num_links)]
    flows = [
        (
            rng.sample(range(num_links), path_length),
            rng.randint(10**5, 10**7),
            rng.choice((0.0, rng.uniform(0, 1))),
        )
        for _ in range((20, 300, 1000, 1000)[seed])
    ]
    simulation = Simulation(capacities, [latency_s] * num_links)
    for path, num_bytes, start_s in flows:
        simulation.flow(path, num_bytes, start_s=start_s)
    theirs = simgrid_runs.play(capacities, flows, [latency_s] * num_links)["ends"]
    outcome = simulation.run()
    assert outcome.makespan_s == pytest.approx(max(theirs), rel=1e-3)
    assert outcome.ends_s == pytest.approx(theirs, rel=1e-3)


def test_simgrid_ends_flows_on_the_shortest_ways_of_a_graph_alike():
    rng = random.Random(7)
    graph = nx.connected_watts_strogatz_graph(60, 4, 0.3, seed=7)
    links = {link: number for number, link in enumerate(graph.to_directed().edges)}
    capacities = [rng.choice((1e8, 1e9, rng.uniform(1e7, 1e9))) for _ in links]
    simulation, flows = Simulation(capacities), []
    for _ in range(600):
        way = nx.shortest_path(graph, *rng.sample(list(graph), 2))
        path = [links[hop] for hop in itertools.pairwise(way)]
        flows.append((path, rng.randint(10**5, 10**7), rng.uniform(0, 1)))
        simulation.flow(path, flows[-1][1], start_s=flows[-1][2])
    theirs = simgrid_runs.play(capacities, flows)["ends"]
    assert simulation.run().ends_s == pytest.approx(theirs, rel=1e-3)


def test_tasks_wait_for_their_start_and_for_others():
    simulation = Simulation([8 * MBIT], latencies=[0.5])
    send = simulation.flow([0], 10**6, start_s=1)
    reduce = simulation.compute(2, after=[send])
    nothing = simulation.compute(0, after=[send, reduce], start_s=3)
    answer = simulation.flow([0], 10**6, after=[nothing])
    local = simulation.flow([], 10**6, after=[nothing])
    empty = simulation.flow([0], 0, after=[nothing])
    outcome = simulation.run()
    assert simulation.num_tasks == 6
    starts = [outcome.starts_s[task] for task in (send, reduce, nothing, answer)]
    assert starts == [1, 2.5, 4.5, 4.5]
    assert [outcome.ends_s[task] for task in (send, reduce, nothing)] == [2.5, 4.5, 4.5]
    assert [outcome.ends_s[task] for task in (answer, local, empty)] == [6, 4.5, 5]
    assert outcome.makespan_s == 6
    assert outcome.link_bytes == [2 * 10**6]


def test_a_flow_that_leaves_makes_room():
    simulation = Simulation([8 * MBIT])
    simulation.flow([0], 10**6)
    simulation.flow([0], 3 * 10**6)
    assert simulation.run().ends_s == pytest.approx([2, 4])


def test_tasks_of_a_lane_go_one_after_the_other():
    simulation = Simulation([8 * MBIT], latencies=[0.25])
    blocker = simulation.flow([0], 10**6, lane=7)
    late = simulation.compute(0.5)
    second = simulation.flow([0], 10**6, lane=7, after=[late])
    first = simulation.flow([0], 10**6, start_s=0.1, lane=7)
    work = [simulation.compute(2, lane=3), simulation.compute(1, lane=3)]
    outcome = simulation.run()
    # `first` came earlier, but of those that wait the smaller number goes first.
    ends = [outcome.ends_s[task] for task in (blocker, second, first, *work)]
    assert ends == pytest.approx([1.25, 2.25, 3.25, 2, 3])
    assert [outcome.starts_s[task] for task in (second, first, *work)] == [0.5, 0.1, 0, 0]


def test_weights_and_priorities():
    simulation = Simulation([8 * MBIT])
    simulation.flow([0], 3 * 10**6, weight=3)
    simulation.flow([0], 10**6)
    simulation.flow([0], 10**6, priority=1)
    assert simulation.run().ends_s == pytest.approx([4, 4, 5])
    urgent = Simulation([8 * MBIT])
    urgent.flow([0], 10**6, priority=200)
    urgent.flow([0], 10**6, priority=3, start_s=0.5)
    assert urgent.run().ends_s == pytest.approx([2, 1.5])


def test_a_link_goes_dark_and_comes_back_with_another_rate():
    simulation = Simulation([8 * MBIT, 80 * MBIT])
    simulation.flow([0, 1], 4 * 10**6)
    simulation.change_capacity(0, 1, 24 * MBIT, dark_s=0.25)
    simulation.change_capacity(0, 1.5, 8 * MBIT)
    # 1 MB in 1 s, then nothing for 0.25 s, 0.75 MB in 0.25 s, and the rest at 1 MB/s.
    assert simulation.run().makespan_s == pytest.approx(1.5 + 2.25)


def test_flows_take_another_path_with_what_is_left_of_them():
    simulation = Simulation([8 * MBIT, 8 * MBIT])
    simulation.flow([0], 10**6)
    simulation.flow([0], 10**6, priority=1)
    simulation.flow([0], 10**6, start_s=4)
    simulation.flow([1], 10**6)
    simulation.change_path([0], 0.75, [1])
    simulation.change_path([0], 3, [0, 1])
    # Both links carry 0.75 MB, then link 1 what is left of both, and then what is less urgent.
    outcome = simulation.run()
    assert outcome.ends_s == pytest.approx([1.25, 2.25, 5, 1.25])
    assert outcome.link_bytes == pytest.approx([0.75e6 + 1e6, 3.25e6])


def test_flows_that_end_together_do_so_at_once():
    count = 30_000
    simulation = Simulation([1e9] * 300)
    for flow in range(count):
        simulation.flow([flow % 200, 200 + flow // 300], 10**6)
    calls = []
    assert len(set(simulation.run(calls.append).ends_s)) == 1
    assert calls == []  # it is called every few hundred moments


def test_progress_is_told_and_may_raise():
    simulation = Simulation([8 * MBIT])
    for _ in range(2000):
        simulation.compute(random.Random(simulation.num_tasks).random())
    told = []
    simulation.run(told.append)
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] < 2000

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulation.run(stop)


def test_nothing_is_added_while_it_runs():
    simulation = Simulation([8 * MBIT])
    for _ in range(2000):
        simulation.compute(random.Random(simulation.num_tasks).random())
    with pytest.raises(RuntimeError, match="the simulation runs"):
        simulation.run(lambda _: simulation.flow([0], 1))
    assert simulation.compute(1.0) == 2000


def test_tasks_that_never_end_are_an_error():
    simulation = Simulation([8 * MBIT, 8 * MBIT])
    simulation.flow([0], 10**6)
    simulation.flow([0, 1], 10**6)
    simulation.compute(1, after=[1])
    simulation.change_capacity(1, 0.5, 0)
    with pytest.raises(ValueError, match=r"2 of 3 tasks never end: flow 1 waits for link 1, which"):
        simulation.run()
    simulation.change_capacity(1, 3, 8 * MBIT)
    assert simulation.run().makespan_s > 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: Simulation([-1]), "link 0 has the capacity -1"),
        (lambda s: Simulation([1, 1], [0]), "2 capacities, but 1 latencies: give one to each link"),
        (lambda s: Simulation([1], [-1]), "link 0 has the latency -1: expected .* seconds"),
        (lambda s: s.flow([1], 1), "flow 1 names link 1, but links are numbered from 0 to 0"),
        (lambda s: s.flow([0], -5), "flow 1 has the size -5: expected .* bytes"),
        (lambda s: s.flow([0], 5, weight=0), "flow 1 has the weight 0"),
        (lambda s: s.flow([0], 5, priority=256), "flow 1 has the priority 256"),
        (lambda s: s.flow([0], 5, start_s=float("nan")), "flow 1 has the start nan"),
        (lambda s: s.flow([0], 5, after=[1]), "flow 1 comes after task 1, but only 1 tasks were"),
        (lambda s: s.flow([0], 5, lane=-1), "lane -1: expected 0 or more"),
        (lambda s: s.compute(float("inf")), "computation 1 has the duration inf"),
        (lambda s: s.compute(1, after=[-1]), "computation 1 comes after task -1"),
        (lambda s: s.change_capacity(1, 0, 1), "change of link 1: there are 1 links"),
        (lambda s: s.change_capacity(0, -1, 1), "change of link 0 has the time -1"),
        (lambda s: s.change_capacity(0, 0, -1), "change of link 0 has the capacity -1"),
        (lambda s: s.change_capacity(0, 0, 1, dark_s=-1), "change of link 0 has the dark time -1"),
        (lambda s: s.change_path([0], 0, [1]), "change of a path names link 1, but links are"),
        (lambda s: s.change_path([0], 0, []), "change of a path from or to one without links"),
        (lambda s: s.change_path([0], -1, [0]), "change of a path has the time -1"),
    ],
)
def test_a_wrong_number_is_named_and_changes_nothing(call, message):
    simulation = Simulation([8 * MBIT])
    simulation.flow([0], 10**6)
    with pytest.raises(ValueError, match=message):
        call(simulation)
    assert simulation.run().ends_s == [1]
