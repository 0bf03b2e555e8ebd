"""Twenty jobs with random priorities on a simulated cluster, with the proxies' arbiter and without.

The arbiter is the real one: its rounds (`csrc/proxy/arbitration.h`), and the seats and credits of
those who send. The network is simulated: flows have max-min fair rates, as TCP connections about
have, and hosts have one NIC each at a fast switch. Without the arbiter NICs send what
comes first.

In each step a job computes, then each of its ranks sends a ring's all_reduce to the next rank. The
step ends when all have sent theirs. Time goes in steps of a millisecond.
"""

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.row import Row
from dmlcomm import _core
from dmlcomm.sim import max_min_rates

HOSTS = 8
HOSTS_PER_JOB = 4
JOBS = 20
RATE_BPS = 1e9
NUM_BYTES = 12_500_000  # of an all_reduce
STEPS = 12
TICK_S = 1e-3
FRAME_BYTES = 64 * 1024
SEEDS = (1, 2, 3)
# The bars of MLNET's twenty jobs.
MOST_MEDIAN = 0.75
MOST_TAIL = 1.02


@dataclass
class _Flow:
    """Bytes of a job from one host to another. `queued`: that have left the process."""

    source: int
    target: int
    credit: "_core.NicCredit | None"
    left: float = 0.0
    queued: float = 0.0


class _Job:
    def __init__(self, rng: random.Random) -> None:
        self.priority = rng.randrange(_core.MAX_PRIORITY + 1)
        self.hosts = rng.sample(range(HOSTS), HOSTS_PER_JOB)
        self.compute_s = NUM_BYTES * 8 / RATE_BPS * rng.uniform(0.5, 1.5)
        self.flows: list[_Flow] = []
        self.steps = 0
        self.sends = False
        self.wakes_s = rng.uniform(0, self.compute_s)
        self.end_s = math.inf

    def sit(self, name: str, arbitrations: "list[_core.Arbitration]") -> None:
        targets = [*self.hosts[1:], self.hosts[0]]
        for source, target in zip(self.hosts, targets, strict=True):
            credit = None
            if arbitrations:
                seat = _core.JobSeat()
                arbitrations[source].add(name, self.priority, seat)
                credit = _core.NicCredit(seat, "nic")
                credit.measured(RATE_BPS)
            self.flows.append(_Flow(source, target, credit))

    def tick(self, now_s: float) -> None:
        """Begins to send when it has computed, and to compute when all is sent."""
        if self.sends and all(flow.left == 0 for flow in self.flows):
            self.sends = False
            self.steps += 1
            self.wakes_s = now_s + self.compute_s
            if self.steps == STEPS:
                self.end_s = now_s
        if self.sends or now_s < self.wakes_s or self.steps == STEPS:
            return
        self.sends = True
        for flow in self.flows:
            flow.left = 2 * (HOSTS_PER_JOB - 1) / HOSTS_PER_JOB * NUM_BYTES
            if flow.credit is not None:
                flow.credit.busy(True)


def play(seed: int, is_arbitrated: bool) -> list[float]:
    """The seconds of each job."""
    rng = random.Random(seed)
    arbitrations = [_core.Arbitration() for _ in range(HOSTS)] if is_arbitrated else []
    jobs = [_Job(rng) for _ in range(JOBS)]
    for number, job in enumerate(jobs):
        job.sit(str(number), arbitrations)
    tick = 0
    while any(job.end_s == math.inf for job in jobs):
        now_s = tick * TICK_S
        for job in jobs:
            job.tick(now_s)
        for arbitration in arbitrations:
            arbitration.round(1 + round(now_s * 1e9))
        _send([flow for job in jobs for flow in job.flows if flow.left > 0], 1 + round(now_s * 1e9))
        tick += 1
    return [job.end_s for job in jobs]


def _send(flows: list[_Flow], now_ns: int) -> None:
    """What the flows carry in a tick."""
    paths, capacities = [], [RATE_BPS] * (2 * HOSTS)
    for flow in flows:
        path = [flow.source, HOSTS + flow.target]
        _take_credit(flow, now_ns)
        if flow.queued < flow.left:  # it cannot carry more than that
            path.append(len(capacities))
            capacities.append(flow.queued * 8 / TICK_S)
        paths.append(path)
    for flow, rate in zip(flows, max_min_rates(paths, capacities), strict=True):
        sent = min(flow.left, rate * TICK_S / 8)
        flow.left -= sent
        flow.queued = max(0.0, flow.queued - sent)
        if flow.left < 1:
            flow.left = flow.queued = 0.0
        if flow.credit is not None:
            flow.credit.sent(math.ceil(sent))
            if flow.left == 0:
                flow.credit.busy(False)


def _take_credit(flow: _Flow, now_ns: int) -> None:
    if flow.credit is None or not flow.credit.is_limited():
        flow.queued = flow.left
        return
    flow.queued = min(flow.queued, FRAME_BYTES)
    while flow.queued < flow.left and flow.credit.has_credit(now_ns):
        num_bytes = min(FRAME_BYTES, math.ceil(flow.left - flow.queued))
        flow.credit.take(num_bytes)
        flow.queued += num_bytes


def rows() -> Iterator[Row]:
    for seed in SEEDS:
        fifo, arbitrated = play(seed, is_arbitrated=False), play(seed, is_arbitrated=True)
        case = f"{JOBS} jobs on {HOSTS} hosts, seed {seed}"
        for name, of in (("median", statistics.median), ("tail", _tail)):
            yield Row(
                experiment="priorities, simulated",
                case=f"{case}: {name} of the jobs' times",
                seconds=of(arbitrated),
                bound_s=of(fifo),
                most_of_bound=MOST_MEDIAN if name == "median" else MOST_TAIL,
                remark=f"longest {max(arbitrated):.2f} s, {max(fifo):.2f} s without the arbiter",
            )


def _tail(times: list[float]) -> float:
    return statistics.quantiles(times, n=20, method="inclusive")[-1]
