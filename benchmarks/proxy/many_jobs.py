"""MLNET's twenty jobs with random priorities on a simulated cluster, with and without the arbiter.

The paper has 1,024 hosts with one NIC each, and twenty models of 200 workers and 50 servers on
random hosts, which all begin at once. In a step workers compute for 30 s, push what takes a
server's NIC 208 s, and pull as much. Here hosts, workers and servers are a sixteenth, so a host has
as many jobs, and times are a two-thousandth: the arbiter works in milliseconds. Only NICs limit
flows, as in the paper without over-subscription.

The arbiter is the real one: its rounds (`csrc/proxy/arbitration.h`), and the seats and credits of
those who send and those who read. The network is simulated: flows have max-min fair rates, as TCP
connections about have, and no others without the arbiter. Time goes in steps of a millisecond.
"""

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.row import Row
from dmlcomm import _core
from dmlcomm.sim import max_min_rates

SCALE = 16
HOSTS = 1024 // SCALE
WORKERS, SERVERS = 200 // SCALE, 50 // SCALE
JOBS = 20
RATE_BPS = 1e9
TIME_SCALE = 2000
COMPUTE_S = 30 / TIME_SCALE
PHASE_S = 208 / TIME_SCALE  # of the push alone, and of the pull
FLOW_BYTES = PHASE_S * RATE_BPS / 8 / WORKERS
STEPS = 10
TICK_S = 1e-3
TICK_BYTES = RATE_BPS * TICK_S / 8
FRAME_BYTES = 64 * 1024
SEEDS = (1, 2, 3, 4, 5)
# The bars of MLNET's twenty jobs, and what the paper has.
MOST_MEDIAN = 0.75
MOST_TAIL = 1.02
PAPER = {"median": "-25 %", "95th percentile": "+2 %"}


@dataclass
class _End:
    """One direction of a job's NIC on a host. `room`: bytes that may go now, by credit."""

    link: int
    credit: "_core.NicCredit | None" = None
    room: float = 0.0
    flows: "set[int]" = field(default_factory=set)  # that have something left

    def top_up(self, now_ns: int) -> bool:
        """Whether the credit limits it."""
        if self.credit is None or not self.credit.is_limited():
            self.room = 0.0
            return False
        while self.room < TICK_BYTES and self.credit.has_credit(now_ns):
            self.credit.take(FRAME_BYTES)
            self.room += FRAME_BYTES
        return True

    def carry(self, num_bytes: float) -> None:
        self.room = max(0.0, self.room - num_bytes)
        if self.credit is not None:
            self.credit.count(math.ceil(num_bytes))

    def change(self, flow: int, is_there: bool) -> None:
        was_busy = bool(self.flows)
        (self.flows.add if is_there else self.flows.discard)(flow)
        if self.credit is not None and bool(self.flows) != was_busy:
            # A byte, as this network has no queues.
            (self.credit.begin if self.flows else self.credit.end)(1)


@dataclass
class _Flow:
    """Bytes of a job from one host to another, or inside one."""

    number: int
    out: _End
    into: _End
    left: float = 0.0

    def begin(self) -> None:
        self.left = FLOW_BYTES
        self.out.change(self.number, True)
        self.into.flows.add(self.number)

    def carry(self, num_bytes: float) -> None:
        num_bytes = min(self.left, num_bytes)
        self.left -= num_bytes
        self.out.carry(num_bytes)
        self.into.carry(num_bytes)
        if self.left < 1:
            self.left = 0.0
            self.out.change(self.number, False)
            self.into.flows.discard(self.number)


class _Job:
    """Workers on random hosts that push to servers on random hosts, and pull when all have."""

    def __init__(self, name: str, rng: random.Random, cluster: "_Cluster") -> None:
        priority = rng.randrange(_core.MAX_PRIORITY + 1)
        workers = rng.sample(range(HOSTS), WORKERS)
        servers = rng.sample(range(HOSTS), SERVERS)
        hosts = {host: cluster.sit(name, priority, host) for host in {*workers, *servers}}
        pairs = [(w, s) for s in servers for w in workers if w != s]
        self.pushes = [cluster.flow(hosts[w][0], hosts[s][1]) for w, s in pairs]
        self.pulls = [cluster.flow(hosts[s][0], hosts[w][1]) for w, s in pairs]
        self.end_s = math.inf
        self._is_pushing = self._is_pulling = False
        self._wakes_s = COMPUTE_S
        self._steps = 0

    def tick(self, now_s: float) -> None:
        if self._is_pulling and not any(flow.left for flow in self.pulls):
            self._is_pulling = False
            self._steps += 1
            self._wakes_s = now_s + COMPUTE_S
            self.end_s = now_s if self._steps == STEPS else math.inf
        if self._is_pushing and not any(flow.left for flow in self.pushes):
            self._begin(self.pulls)
            self._is_pushing, self._is_pulling = False, True
        is_idle = not self._is_pushing and not self._is_pulling and self.end_s == math.inf
        if is_idle and now_s >= self._wakes_s:
            self._begin(self.pushes)
            self._is_pushing = True

    @staticmethod
    def _begin(flows: "Sequence[_Flow]") -> None:
        for flow in flows:
            flow.begin()


class _Cluster:
    def __init__(self, is_arbitrated: bool) -> None:
        self._arbitrations = [_core.Arbitration() for _ in range(HOSTS)] if is_arbitrated else []
        self._flows: list[_Flow] = []

    def sit(self, name: str, priority: int, host: int) -> tuple[_End, _End]:
        """A job's process on a host: what it sends, and what it reads."""
        if not self._arbitrations:
            return _End(host), _End(HOSTS + host)
        seat = _core.JobSeat()
        self._arbitrations[host].add(name, priority, seat)
        sent, read = (_core.NicCredit(seat, "nic", arrives=arrives) for arrives in (False, True))
        sent.measured(RATE_BPS)
        return _End(host, sent), _End(HOSTS + host, read)

    def flow(self, out: _End, into: _End) -> _Flow:
        self._flows.append(_Flow(len(self._flows), out, into))
        return self._flows[-1]

    def tick(self, now_ns: int) -> None:
        for arbitration in self._arbitrations:
            arbitration.round(now_ns)
        flows = [flow for flow in self._flows if flow.left]
        capacities = [RATE_BPS] * (2 * HOSTS)
        limits: dict[int, int | None] = {}  # of an end, its own link
        paths = []
        for flow in flows:
            path = [flow.out.link, flow.into.link]
            for end in (flow.out, flow.into):
                if id(end) not in limits:
                    is_limited = end.top_up(now_ns)
                    limits[id(end)] = len(capacities) if is_limited else None
                    capacities += [max(0.0, end.room * 8 / TICK_S)] * is_limited
                own = limits[id(end)]
                path += [] if own is None else [own]
            paths.append(path)
        for flow, rate in zip(flows, max_min_rates(paths, capacities), strict=True):
            flow.carry(rate * TICK_S / 8)


def play(seed: int, is_arbitrated: bool) -> list[float]:
    """The seconds of each job."""
    rng = random.Random(seed)
    cluster = _Cluster(is_arbitrated)
    jobs = [_Job(str(number), rng, cluster) for number in range(JOBS)]
    for tick in itertools.count():
        now_s = tick * TICK_S
        for job in jobs:
            job.tick(now_s)
        if all(job.end_s < math.inf for job in jobs):
            return [job.end_s for job in jobs]
        cluster.tick(1 + round(now_s * 1e9))
    raise AssertionError("unreachable")


def rows() -> Iterator[Row]:
    """By seed, and the means over all seeds, which the bars are about."""
    plays = [(play(seed, is_arbitrated=False), play(seed, is_arbitrated=True)) for seed in SEEDS]
    measures = (("median", statistics.median, MOST_MEDIAN), ("95th percentile", _tail, MOST_TAIL))
    for name, of, most in measures:
        pairs = [(of(shared), of(arbitrated)) for shared, arbitrated in plays]
        for seed, (before, after) in zip(SEEDS, pairs, strict=True):
            yield _row(name, f"seed {seed}", before, after, None)
        before, after = (statistics.mean(times) for times in zip(*pairs, strict=True))
        yield _row(name, f"mean of {len(SEEDS)} seeds", before, after, most)


def _row(name: str, which: str, before: float, after: float, most: float | None) -> Row:
    return Row(
        experiment="priorities, simulated",
        case=f"{JOBS} jobs on {HOSTS} hosts: {name} of the jobs' times, {which}",
        seconds=after,
        bound_s=before,
        most_of_bound=most,
        remark=f"{after / before - 1:+.0%} (paper {PAPER[name]})",
    )


def _tail(times: list[float]) -> float:
    return statistics.quantiles(times, n=20, method="inclusive")[-1]
