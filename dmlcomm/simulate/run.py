"""Plays a scenario: jobs as tasks of a simulation, and what came of them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dmlcomm import _core
from dmlcomm.planning.schedules import list_tasks
from dmlcomm.sim import Outcome, Simulation
from dmlcomm.simulate import push_pull
from dmlcomm.simulate.fabric import Fabric, Nic
from dmlcomm.simulate.fields import ScenarioError
from dmlcomm.simulate.psnet import Psnet
from dmlcomm.simulate.scenario import Job, Move, RateChange, Scenario
from dmlcomm.simulate.sip import PREFIX, Sip
from dmlcomm.simulate.trunks import Trunks

# Of a job, in all steps.
MOST_MESSAGES = 2_000_000


@dataclass(frozen=True)
class Step:
    """Of a job, in seconds. The operation is from the last rank's call to the last one's result."""

    begin_s: float
    operation_s: float
    end_s: float


@dataclass(frozen=True)
class JobResult:
    """Times of a job; ``algorithm`` is the one that was taken."""

    job: Job
    algorithm: str
    steps: list[Step]

    @property
    def seconds(self) -> float:
        """From the job's start to its last result."""
        return self.steps[-1].end_s - self.job.start_s

    @property
    def throughput_bps(self) -> float:
        """Bits that the job's operations were called with, per second of the whole job."""
        bits = 8.0 * self.job.num_bytes * len(self.steps)
        return bits / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class LinkResult:
    """One direction of a NIC: bytes of data that it has carried, and the share of what it could."""

    nic: Nic
    sends: bool
    num_bytes: float
    utilisation: float


@dataclass(frozen=True)
class TrunkResult:
    """Bytes of data that a trunk has carried, and the share of what it could."""

    name: str
    num_bytes: float
    utilisation: float


@dataclass(frozen=True)
class Result:
    """What came of a scenario."""

    makespan_s: float
    jobs: list[JobResult]
    links: list[LinkResult]
    trunks: list[TrunkResult]


class Player:
    """A scenario as a simulation.

    ``seed`` draws the jitter of computations, and the links that switches choose by hash.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._random = random.Random(seed)
        tree = scenario.tree
        trunks: Trunks | Sip | None = None
        if tree is not None:
            is_sip = tree.graph["spec"].startswith(PREFIX)
            trunks = Sip(tree) if is_sip else Trunks(tree, scenario.ecmp, seed)
        psnet = None if scenario.psnet is None else Psnet(scenario.psnet.graph)
        self._fabric = Fabric(scenario.network, trunks, psnet)
        self._simulation = Simulation(self._fabric.capacities)
        self._lanes: dict[tuple[str, int, int, int], int] = {}
        self._ways: dict[tuple[int, ...], Callable[[], list[int]]] = {}
        self._jobs = [self._add_job(i, job) for i, job in enumerate(scenario.jobs)]
        self._timeline = nic_timeline(self._fabric, scenario.changes)
        for nic, changes in self._timeline.items():
            for time_s, rate in changes:
                for link in (self._fabric.out_link(nic), self._fabric.in_link(nic)):
                    self._simulation.change_capacity(link, time_s, rate)
        self._dark: dict[int, list[tuple[float, float]]] = {}  # of moved links, as a timeline
        for move in scenario.moves:
            self._move(move)

    @property
    def fabric(self) -> Fabric:
        """The network as links."""
        return self._fabric

    @property
    def num_tasks(self) -> int:
        return self._simulation.num_tasks

    def run(self, progress: Callable[[int], None] | None = None) -> Result:
        """``progress``: called now and then with the number of tasks that have ended."""
        try:
            outcome = self._simulation.run(progress, resolution_s=self._scenario.resolution_s)
        except ValueError as error:
            self._explain(error)
            raise
        jobs = [
            JobResult(job, algorithm, [_step_of(outcome, *step) for step in steps])
            for job, (algorithm, steps) in zip(self._scenario.jobs, self._jobs, strict=True)
        ]
        return Result(outcome.makespan_s, jobs, self._links(outcome), self._trunks(outcome))

    def _explain(self, error: ValueError) -> None:
        """Raises ScenarioError if a NIC without a rate is why tasks never end."""
        for nic, changes in self._timeline.items():
            since_s, rate = changes[-1]
            if rate == 0:
                place = self._fabric.nics[nic]
                rails = ", ".join(map(str, place.rails))
                raise ScenarioError(
                    f"not all jobs end: rail {rails} of host {place.host} has no rate from "
                    f"{since_s:g} s on. Give it one in a later event"
                ) from error

    def _move(self, move: Move) -> None:
        """Messages that are under way take their new paths, too."""
        for link in self._fabric.move(move.circuits):
            rate = self._fabric.capacities[link]
            self._simulation.change_capacity(link, move.at_s, rate, dark_s=move.dark_s)
            dark = [(move.at_s, 0.0), (move.at_s + move.dark_s, rate)]
            self._dark.setdefault(link, []).extend(dark)
        for path, way in self._ways.items():
            self._simulation.change_path(path, move.at_s, way())

    def _flow(self, way: Callable[[], list[int]], num_bytes: float, **options: Any) -> int:
        """A flow whose path is what ``way`` says, now and when circuits have been moved."""
        path = way()
        if self._scenario.moves and path:
            self._ways[tuple(path)] = way
        return self._simulation.flow(path, num_bytes, **options)

    def _add_job(self, index: int, job: Job) -> tuple[str, list[tuple[list[int], list[int]]]]:
        """The algorithm; and by step the tasks whose ends are ranks' calls, and their results."""
        if job.op == push_pull.OPERATION:
            return job.tree, self._add_push_pull(index, job)
        network = replace(self._scenario.network, num_hosts=len(job.hosts))
        try:
            listed = list_tasks(network, job.op, job.num_bytes, job.element_bytes, job.algorithm)
        except ValueError as error:
            raise ScenarioError(f'job "{job.name}": {error}') from error
        _check_messages(job, job.steps * sum(task.kind == "message" for task in listed.tasks))
        steps: list[tuple[list[int], list[int]]] = []
        before: list[int] = []
        for _ in range(job.steps):
            step = self._add_step(index, job, listed.tasks, before)
            steps.append(step)
            before = step[1]
        return listed.algorithm, steps

    def _add_push_pull(self, index: int, job: Job) -> list[push_pull.Step]:
        ranks = self._scenario.network.ranks_per_host
        # Ranks of a host have one proxy, which is the node of a tree.
        together = 1 if job.tree == push_pull.DIRECT else ranks
        workers = [host * ranks + i for host in job.hosts for i in range(0, ranks, together)]
        num_workers, num_servers = len(workers), len(job.servers)
        _check_messages(job, 2 * num_workers * num_servers * job.steps * max(1, job.num_chunks))
        racks = [self._fabric.rack_of(worker // ranks) for worker in workers]
        orders = push_pull.orders(job.tree_order, num_workers, num_servers, self._random)
        trees = [push_pull.parents(job.tree, order, racks, job.answer) for order in orders]

        def rank_of(server: int, worker: int | None) -> int:
            return job.servers[server] * ranks if worker is None else workers[worker]

        def send(server: int, edges: Sequence[push_pull.Edge], after: Sequence[int]) -> int:
            def way() -> list[int]:
                ends = [(rank_of(server, a), rank_of(server, b)) for a, b in edges]
                return [link for a, b in ends for link in self._way_between(a, b, (index, server))]

            share = job.num_bytes / num_servers / max(1, job.num_chunks)
            priority, weight = job.priority, job.weight
            return self._flow(way, share, after=after, priority=priority, weight=weight)

        def join(after: Sequence[int]) -> int:
            return self._simulation.compute(0, after=after)

        def grant(server: int, edge: push_pull.Edge, before: int) -> int:
            if not job.grant_bytes:
                return before
            nic = self._fabric.nic_index(rank_of(server, edge[1]) // ranks, 0)
            rate = self._fabric.capacities[self._fabric.in_link(nic)]
            in_front = job.grant_bytes * num_servers  # of all trees
            return self._simulation.compute(8 * in_front / rate, after=[before])

        options = job.staleness, job.num_chunks, job.answer
        traffic = push_pull.Traffic(trees, *options, send, join, grant)
        steps: list[push_pull.Step] = []
        for _ in range(job.steps):
            before = steps[-1][1] if steps else None
            computed = [
                self._add_compute(job, [before[worker]] if before else [], together)
                for worker in range(num_workers)
            ]
            steps.append((computed, traffic.add_step(computed)))
        return steps

    def _way_between(self, sender: int, receiver: int, connection: tuple[int, int]) -> list[int]:
        """The links of what a worker or server sends to another."""
        hosts = [rank // self._scenario.network.ranks_per_host for rank in (sender, receiver)]
        hops = [(hosts[0], hosts[1], None)] if hosts[0] != hosts[1] else []
        return self._fabric.path(hops, sender, receiver, connection)

    def _add_compute(self, job: Job, after: list[int], ranks: int = 1) -> int:
        """Of the slowest of some ranks."""
        jitter = job.jitter * max(self._random.random() for _ in range(ranks))
        duration = job.compute_s * (1 + jitter)
        return self._simulation.compute(duration, start_s=job.start_s, after=after)

    def _add_step(
        self, index: int, job: Job, tasks: Sequence[_core.Task], before: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        begins, ends, ids = [], [], []
        for task in tasks:
            if task.kind == "begin":
                ids.append(self._add_compute(job, [before[task.rank]] if before else []))
                begins.append(ids[-1])
                continue
            after = [ids[i] for i in task.after]
            if task.kind == "message":
                ids.append(self._add_message(index, job, task, after))
            elif task.kind == "end":
                ids.append(self._simulation.compute(0, after=after))
                ends.append(ids[-1])
            else:
                lane = self._lane(task.kind, index, task.rank, task.rank)
                ids.append(self._simulation.compute(task.seconds, after=after, lane=lane))
        return begins, ends

    def _add_message(self, index: int, job: Job, task: _core.Task, after: list[int]) -> int:
        hops = [(job.hosts[a], job.hosts[b], rail) for a, b, rail in task.hops]
        sender, receiver = (self._global_rank(job, rank) for rank in (task.rank, task.receiver))
        return self._flow(
            lambda: self._fabric.path(hops, sender, receiver, (index,)),
            task.bytes,
            after=[self._simulation.compute(task.seconds, after=after)],
            weight=job.weight,
            priority=job.priority,
            lane=self._lane("message", index, task.rank, task.receiver),
        )

    def _global_rank(self, job: Job, rank: int) -> int:
        host, local = divmod(rank, self._scenario.network.ranks_per_host)
        return job.hosts[host] * self._scenario.network.ranks_per_host + local

    def _lane(self, kind: str, job: int, a: int, b: int) -> int:
        return self._lanes.setdefault((kind, job, a, b), len(self._lanes))

    def _links(self, outcome: Outcome) -> list[LinkResult]:
        found = []
        for i, nic in enumerate(self._fabric.nics):
            rate = self._fabric.capacities[self._fabric.out_link(i)]
            could = _carried(rate, self._timeline.get(i, []), outcome.makespan_s)
            for sends in (True, False):
                link = self._fabric.out_link(i) if sends else self._fabric.in_link(i)
                num_bytes = outcome.link_bytes[link]
                share = 8 * num_bytes / could if could else 0.0
                found.append(LinkResult(nic, sends, num_bytes, share))
        return found

    def _trunks(self, outcome: Outcome) -> list[TrunkResult]:
        found = []
        for i, trunk in enumerate(self._fabric.trunks):
            link = self._fabric.trunk_link(i)
            rate = self._fabric.capacities[link]
            could = _carried(rate, self._dark.get(link, []), outcome.makespan_s)
            num_bytes = outcome.link_bytes[link]
            share = 8 * num_bytes / could if could else 0.0
            found.append(TrunkResult(trunk.name, num_bytes, share))
        return found


def _check_messages(job: Job, count: int) -> None:
    if count > MOST_MESSAGES:
        raise ScenarioError(
            f'job "{job.name}" has {count} messages: up to {MOST_MESSAGES} are simulated. Give it '
            "fewer steps"
        )


def nic_timeline(
    fabric: Fabric, changes: Sequence[RateChange]
) -> dict[int, list[tuple[float, float]]]:
    """By NIC of the fabric: (time, capacity from then on), in the order of time."""
    network = fabric.network
    moments = []
    for change in changes:
        if change.dark_s:
            moments.append((change.at_s, change, True))
        moments.append((change.at_s + change.dark_s, change, False))
    dark: set[tuple[int, int]] = set()
    rates = {
        (nic.host, rail): fabric.rate_bps(nic.host, rail)
        for nic in fabric.nics
        for rail in nic.rails
    }
    found: dict[int, list[tuple[float, float]]] = {}
    for time_s, change, is_dark in sorted(moments, key=lambda moment: moment[0]):
        place = change.host, change.rail
        dark = dark | {place} if is_dark else dark - {place}
        if not is_dark and change.rate_bps is not None:
            rates[place] = change.rate_bps
        nic = fabric.nic_index(*place)
        places = [(change.host, rail) for rail in fabric.nics[nic].rails]
        total = sum(rates[one] for one in places if one not in dark) * network.efficiency
        found.setdefault(nic, []).append((time_s, total))
    return found


def _carried(rate: float, changes: Sequence[tuple[float, float]], until_s: float) -> float:
    """Bits that a link can carry from 0 to ``until_s``."""
    total, since_s = 0.0, 0.0
    for time_s, next_rate in changes:
        if time_s >= until_s:
            break
        total += rate * (time_s - since_s)
        rate, since_s = next_rate, time_s
    return total + rate * (until_s - since_s)


def _step_of(outcome: Outcome, begins: list[int], ends: list[int]) -> Step:
    began = [outcome.starts_s[task] for task in begins]
    called = max(outcome.ends_s[task] for task in begins)
    end = max(outcome.ends_s[task] for task in ends)
    return Step(min(began), end - called, end)
