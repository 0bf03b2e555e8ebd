"""A fat tree of three tiers in which circuits can be moved, and jobs on it.

A *seat* is the number of the top-of-rack switch (ToR) that a server is connected to. Circuit
switches between servers and ToRs change seats; one that reaches several pods is a *domain* of them.

Source: "Silicon photonic switch-enabled server regrouping using bandwidth steering for distributed
deep learning training" ("SiP" here).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

RING, PS = "ring", "ps"
KINDS = (RING, PS)


@dataclass(frozen=True)
class Cluster:
    """``pods`` pods of ``tors`` ToRs with ``ports`` servers each.

    Attributes:
        switches: circuit switches between servers and ToRs; each reaches as many pods.

    Raises:
        ValueError: the pods are no multiple of the switches, or a number is below 1.
    """

    pods: int
    tors: int
    ports: int
    switches: int = 1

    def __post_init__(self) -> None:
        if min(self.pods, self.tors, self.ports, self.switches) < 1 or self.pods % self.switches:
            raise ValueError(
                f"a cluster of {self.pods} pods, {self.tors} ToRs of {self.ports} ports and "
                f"{self.switches} circuit switches: expected numbers from 1, and as many pods at "
                "each circuit switch"
            )

    @property
    def num_tors(self) -> int:
        return self.pods * self.tors

    @property
    def num_servers(self) -> int:
        return self.num_tors * self.ports

    def first_seats(self) -> list[int]:
        """By server, its seat before anything is moved."""
        return [server // self.ports for server in range(self.num_servers)]

    def pod_of(self, tor: int) -> int:
        return tor // self.tors

    def tors_of_pod(self, pod: int) -> range:
        return range(pod * self.tors, (pod + 1) * self.tors)

    def domain_of(self, tor: int) -> int:
        """The circuit switch that reaches a ToR."""
        return self.pod_of(tor) // (self.pods // self.switches)

    def tors_of(self, domain: int) -> range:
        count = self.num_tors // self.switches
        return range(domain * count, (domain + 1) * count)


@dataclass(frozen=True)
class Job:
    """Servers in the order of their ranks. That of rank 0 is the parameter server of a `PS`."""

    kind: str
    servers: tuple[int, ...]


# From a server to a server.
Flow = tuple[int, int]


def flows_of(job: Job) -> list[Flow]:
    """A ring sends to the next rank; workers send to their parameter server, and it to them."""
    servers = job.servers
    if job.kind == RING:
        after = [*servers[1:], servers[0]]
        return list(zip(servers, after, strict=True)) if len(servers) > 1 else []
    server, *workers = servers
    return [(a, b) for worker in workers for a, b in ((worker, server), (server, worker))]


def check_jobs(cluster: Cluster, jobs: Sequence[Job]) -> None:
    """Raises ValueError for a kind, a server or a repetition that there must not be."""
    seen: dict[int, int] = {}
    for number, job in enumerate(jobs):
        if job.kind not in KINDS:
            raise ValueError(f"job {number} is a {job.kind}: expected {' or '.join(KINDS)}")
        if not job.servers:
            raise ValueError(f"job {number} has no servers: give it one or more")
        for server in job.servers:
            if not 0 <= server < cluster.num_servers:
                last = cluster.num_servers - 1
                raise ValueError(f"job {number} has the server {server}: expected 0 to {last}")
            if server in seen:
                raise ValueError(
                    f"server {server} is in jobs {seen[server]} and {number}: expected one of them"
                )
            seen[server] = number


def job_cost(kind: str, counts: Sequence[int]) -> int:
    """How scattered a job's servers are, over ToRs that have so many of them.

    A ring whose ranks are numbered ToR by ToR leaves each of its ToRs once. All servers beside the
    largest part of a `PS` talk to the parameter server from outside its ToR.
    """
    if kind == RING:
        return sum(count > 0 for count in counts)
    return 1 + sum(counts) - max(counts)


def cost(cluster: Cluster, jobs: Sequence[Job], seats: Sequence[int]) -> int:
    """The sum of `job_cost` over jobs and domains: circuits do not leave their switch."""
    total = 0
    for job in jobs:
        parts: dict[int, Counter[int]] = {}
        for server in job.servers:
            tor = seats[server]
            parts.setdefault(cluster.domain_of(tor), Counter())[tor] += 1
        total += sum(job_cost(job.kind, list(counts.values())) for counts in parts.values())
    return total


def touched(before: Sequence[int], after: Sequence[int]) -> int:
    """How many servers get another ToR: circuits that go dark."""
    return sum(a != b for a, b in zip(before, after, strict=True))


def pay_back_s(dark_s: float, before_s: float, after_s: float) -> float:
    """Seconds from a switch on until as much work is done as without it.

    Args:
        dark_s: how long the job stands still.
        before_s, after_s: of an iteration.

    Returns:
        Infinity if iterations do not become shorter.
    """
    if after_s >= before_s:
        return float("inf")
    return dark_s * before_s / (before_s - after_s)
