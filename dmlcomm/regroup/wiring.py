"""The links above the ToRs: uplinks, aggregation switches, and steering (SiP, section VI B).

A ToR has `uplinks` cables, one in each *plane*. A plane has an aggregation switch per pod, with as
many ports downwards as a pod has ToRs; at first they lead to the ToRs of the pod. *Steering* moves
the cables of a plane to other aggregation switches of it, by a circuit switch that reaches all.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dmlcomm.regroup.cluster import Cluster, Flow

# By plane and ToR, the aggregation switch of the plane, from 0.
Wiring = list[list[int]]


@dataclass(frozen=True)
class Rates:
    """Of a tapered tree, in bits per second each way.

    Attributes:
        server: of a server, and of each cable of a ToR upwards.
        aggregation_taper: servers' rates of a ToR against those of its uplinks.
        core_taper: rates of an aggregation switch downwards against those upwards.
    """

    server: float
    aggregation_taper: int
    core_taper: int

    def uplinks(self, cluster: Cluster) -> int:
        """Of a ToR. Raises ValueError where the taper leaves none, or a part of one."""
        if self.aggregation_taper < 1 or cluster.ports % self.aggregation_taper:
            raise ValueError(
                f"a taper of {self.aggregation_taper} at ToRs of {cluster.ports} ports: expected a "
                "divisor, so that whole uplinks are left"
            )
        return cluster.ports // self.aggregation_taper


def static(cluster: Cluster, uplinks: int) -> Wiring:
    """All cables lead to the pod's own aggregation switches."""
    pods = [cluster.pod_of(tor) for tor in range(cluster.num_tors)]
    return [list(pods) for _ in range(uplinks)]


def tor_traffic(flows: Iterable[Flow], seats: Sequence[int]) -> Counter[tuple[int, int]]:
    """By pair of ToRs, the smaller number first, how many flows are between them."""
    traffic: Counter[tuple[int, int]] = Counter()
    for a, b in flows:
        pair = sorted((seats[a], seats[b]))
        if pair[0] != pair[1]:
            traffic[pair[0], pair[1]] += 1
    return traffic


def steered(cluster: Cluster, uplinks: int, traffic: Counter[tuple[int, int]]) -> Wiring:
    """Plane by plane, ToRs with the heaviest traffic come to one aggregation switch.

    Pairs that share one in some planes already count as their traffic per shared plane, so that
    other pairs have the next ones.
    """
    shared: Counter[tuple[int, int]] = Counter()
    wiring = []
    for _ in range(uplinks):
        weight = {pair: flows / (1 + shared[pair]) for pair, flows in traffic.items()}
        plane = _plane(cluster, weight)
        wiring.append(plane)
        shared.update(pair for pair in traffic if plane[pair[0]] == plane[pair[1]])
    return wiring


def _plane(cluster: Cluster, weight: dict[tuple[int, int], float]) -> list[int]:
    """Clusters of ToRs grow along the heaviest pairs while they fit one switch; then the largest
    clusters come first."""
    member: dict[int, list[int]] = {tor: [tor] for tor in range(cluster.num_tors)}
    for a, b in sorted(weight, key=lambda pair: (-weight[pair], pair)):
        ours, theirs = member[a], member[b]
        if ours is theirs or len(ours) + len(theirs) > cluster.tors:
            continue
        ours += theirs
        for tor in theirs:
            member[tor] = ours
    plane = [-1] * cluster.num_tors
    room = [cluster.tors] * cluster.pods
    clusters = {some[0]: some for some in member.values()}
    for some in sorted(clusters.values(), key=lambda one: (-len(one), one[0])):
        # One switch if one has room for all; else where most of it is.
        waiting = list(some)
        while waiting:
            fits = [switch for switch in range(cluster.pods) if room[switch] >= len(waiting)]
            home = Counter(cluster.pod_of(tor) for tor in waiting)
            switch = max(
                fits or range(cluster.pods), key=lambda one: (bool(fits) or room[one], home[one])
            )
            for tor in waiting[: room[switch]]:
                plane[tor] = switch
            taken = min(room[switch], len(waiting))
            waiting, room[switch] = waiting[taken:], room[switch] - taken
    return plane


def through_the_core(flows: Iterable[Flow], seats: Sequence[int], wiring: Wiring) -> int:
    """How many flows share no aggregation switch."""
    return sum(
        all(plane[seats[a]] != plane[seats[b]] for plane in wiring)
        for a, b in flows
        if seats[a] != seats[b]
    )
