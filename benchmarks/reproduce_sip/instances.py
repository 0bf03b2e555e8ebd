"""The cluster of the SiP paper's simulations, and jobs on it.

1,024 servers: 4 pods of 16 ToRs of 16 servers, 100 Gb/s; ring jobs of 32 servers, parameter server
jobs of 16.
"""

import random
from collections.abc import Sequence

from dmlcomm.regroup.cluster import KINDS, Cluster, Job

PODS, TORS, PORTS = 4, 16, 16
SERVERS_OF_POD = TORS * PORTS
RATE_BPS = 100e9
CORE_TAPER = 8
SIZE = {"ring": 32, "ps": 16}


def cluster(switches: int) -> Cluster:
    return Cluster(PODS, TORS, PORTS, switches)


def uniform(kind: str) -> list[Job]:
    """Servers one after the other."""
    return _cut(kind, range(PODS * SERVERS_OF_POD))


def mixed(kind: str, seed: int = 1) -> list[Job]:
    """Half of the servers of a pod are in jobs of their pod, half in jobs of all pods, in which the
    next rank is in another pod. Both halves are shuffled."""
    draws = random.Random(seed)
    inside: list[Job] = []
    outside: list[list[int]] = []
    for pod in range(PODS):
        servers = list(range(pod * SERVERS_OF_POD, (pod + 1) * SERVERS_OF_POD))
        draws.shuffle(servers)
        inside += _cut(kind, servers[: SERVERS_OF_POD // 2])
        outside.append(servers[SERVERS_OF_POD // 2 :])
    return inside + _cut(kind, [server for row in zip(*outside, strict=True) for server in row])


def shuffled(kind: str, seed: int = 1) -> list[Job]:
    """All servers at random."""
    servers = list(range(PODS * SERVERS_OF_POD))
    random.Random(seed).shuffle(servers)
    return _cut(kind, servers)


def of_all_sizes(seed: int = 1) -> list[Job]:
    """Jobs of 2 to 48 servers of both kinds, at random over all pods; some servers have none."""
    return _sized(range(PODS * SERVERS_OF_POD), 48, 64, random.Random(seed))


def of_all_sizes_in_pods(seed: int = 1) -> list[Job]:
    """Jobs of 2 to 30 servers of both kinds, each in one pod; every server has one."""
    draws = random.Random(seed)
    return [
        job
        for pod in range(PODS)
        for job in _sized(range(pod * SERVERS_OF_POD, (pod + 1) * SERVERS_OF_POD), 30, 0, draws)
    ]


def _sized(servers: range, most: int, spare: int, draws: random.Random) -> list[Job]:
    left = list(servers)
    draws.shuffle(left)
    jobs = []
    while len(left) > spare:
        size = draws.randint(2, most)
        jobs.append(Job(draws.choice(KINDS), tuple(left[:size])))
        left = left[size:]
    return jobs


def _cut(kind: str, servers: Sequence[int]) -> list[Job]:
    size = SIZE[kind]
    return [Job(kind, tuple(servers[i : i + size])) for i in range(0, len(servers), size)]


# What plans are compared with exact ones for.
CASES = {
    "ring, mixed": lambda: mixed("ring"),
    "ps, mixed": lambda: mixed("ps"),
    "all sizes": of_all_sizes,
    "all sizes, in pods": of_all_sizes_in_pods,
}
