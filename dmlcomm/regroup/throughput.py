"""What flows get on the links of a cluster, by simulation."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dmlcomm.regroup.cluster import Cluster, Job, flows_of
from dmlcomm.regroup.wiring import Rates, Wiring
from dmlcomm.sim import Simulation

# Of each flow. Rates do not depend on it.
FLOW_BYTES = 10**9


@dataclass(frozen=True)
class Throughput:
    """Of jobs whose flows, all of one size, begin together.

    Attributes:
        mean_bps: mean over flows of size / time.
        step_s: of the jobs, the harmonic mean of the time that a job's slowest flow takes, per GB.
            Its inverse is what the mean job gets done.
    """

    mean_bps: float
    step_s: float


def throughput(
    cluster: Cluster, rates: Rates, wiring: Wiring, jobs: Sequence[Job], seats: Sequence[int]
) -> Throughput:
    """Plays the flows of jobs, with the packets of each spread evenly over its shortest ways.

    Ways of two ToRs are the planes in which they share an aggregation switch; if there are none,
    all planes, through the core. One of the jobs has two servers or more.
    """
    links = _Links(cluster, rates, len(wiring))
    simulation = Simulation(links.capacities)
    flows = [flows_of(job) for job in jobs]
    for a, b in itertools.chain(*flows):
        ways = list(links.ways(a, b, seats, wiring))
        # All ways carry equal parts at one rate, so the flow is one that passes all of them.
        path = [link for way in ways for link in way]
        simulation.flow(path, FLOW_BYTES / len(ways), weight=1 / len(ways))
    ends = simulation.run().ends_s
    left = iter(ends)
    steps = [max(itertools.islice(left, len(some))) for some in flows if some]
    mean_bps = statistics.fmean(8 * FLOW_BYTES / end for end in ends)
    return Throughput(mean_bps, statistics.harmonic_mean(steps))


class _Links:
    """Numbers of links: of servers, of ToRs' uplinks, of aggregation switches; up, then down."""

    def __init__(self, cluster: Cluster, rates: Rates, uplinks: int) -> None:
        self._cluster = cluster
        self._uplinks = uplinks
        up = cluster.tors * rates.server / rates.core_taper
        self.capacities = [rates.server] * (2 * cluster.num_servers)
        self._first_uplink = len(self.capacities)
        self.capacities += [rates.server] * (2 * cluster.num_tors * uplinks)
        self._first_aggregation = len(self.capacities)
        self.capacities += [up] * (2 * cluster.pods * uplinks)

    def ways(self, a: int, b: int, seats: Sequence[int], wiring: Wiring) -> Iterator[list[int]]:
        """The links of each way from a server to another."""
        ends = 2 * a, 2 * b + 1
        if seats[a] == seats[b]:
            yield list(ends)
            return
        planes = range(self._uplinks)
        shared = [i for i in planes if wiring[i][seats[a]] == wiring[i][seats[b]]]
        for i in shared or planes:
            middle = [self._uplink(seats[a], i), self._uplink(seats[b], i) + 1]
            if not shared:
                from_, to = (self._aggregation(wiring[i][seats[s]], i) for s in (a, b))
                middle[1:1] = [from_, to + 1]
            yield [ends[0], *middle, ends[1]]

    def _uplink(self, tor: int, plane: int) -> int:
        return self._first_uplink + 2 * (tor * self._uplinks + plane)

    def _aggregation(self, switch: int, plane: int) -> int:
        return self._first_aggregation + 2 * (switch * self._uplinks + plane)
