"""Ways to synchronise the gradients of a batch, and what a batch takes with each.

A batch is a scenario of `dmlcomm.simulate` with a job per bucket: it begins when the bucket is
ready, and earlier buckets go first, as operations of one group do. The batch is over with the last.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dmlcomm.planning.pricing import ABOUT_EQUAL
from dmlcomm.simulate import push_pull, scenario
from dmlcomm.simulate.fields import ScenarioError
from dmlcomm.simulate.run import Player
from dmlcomm.strategy.request import ALL_REDUCE, ELEMENT_BYTES, Request

# Of a simulated tree, what proxies call it; without proxies workers talk to servers.
SHAPES = {
    push_pull.DIRECT: "direct",
    push_pull.BINARY: "binary",
    push_pull.FLAT_RACK: "rack",
    push_pull.BINARY_RACK: "rack-binary",
    push_pull.CHAIN: "chain",
}
# How many times as long as links need servers take that all workers talk to, since packets are lost
# at their ports (15 workers in the lab; docs/simulation.md, "Beside the lab").
DIRECT_SLOWDOWN = 1.28
# In the lab, ways with servers take up to so many times what is expected (docs/strategy.md, "Beside
# the lab"), and algorithms what is expected. Servers come first where they are faster even so.
MOST_OF_SERVERS = 1.2
SPREAD, PACKED = "spread", "packed"
LAST_PRIORITY = 255


@dataclass(frozen=True)
class Candidate:
    """A way.

    Attributes:
        algorithm: of all_reduce; "" for the choice of ranks, and for parameter servers.
        servers: hosts of parameter servers; none for a collective.
        tree: of `push_pull.TREES`.
        placement: of the servers, `SPREAD` over racks or `PACKED` into the first ones.
    """

    algorithm: str = ""
    servers: tuple[int, ...] = ()
    tree: str = push_pull.DIRECT
    placement: str = ""

    @property
    def name(self) -> str:
        if not self.servers:
            return f"all_reduce, {self.algorithm or 'as ranks choose'}"
        number = len(self.servers)
        of_trees = "" if self.tree == push_pull.DIRECT else f", proxies: {SHAPES[self.tree]}"
        return f"{number} server{'s' * (number > 1)}{of_trees}"


@dataclass(frozen=True)
class Outcome:
    """What a batch takes, computing included; None if it cannot be simulated, for ``reason``.

    Attributes:
        batch_s: expected: traffic takes longer than links need by the candidate's `slowdown`, and
            proxies wait for grants.
        links_s: as links alone allow.
    """

    candidate: Candidate
    batch_s: float | None
    links_s: float | None = None
    reason: str = ""

    @property
    def most_s(self) -> float | None:
        """What a batch takes at most, by what the lab has shown."""
        if self.batch_s is None:
            return None
        return self.batch_s * (MOST_OF_SERVERS if self.candidate.servers else 1.0)


def candidates(request: Request) -> Iterator[Candidate]:
    """All that are tried."""
    for name in request.algorithms:
        yield Candidate(algorithm=name)
    if request.empty.network.sizes:
        return  # hosts of a grid that are no neighbours have no way of one link
    racks = racks_of(request)
    of_racks = (push_pull.FLAT_RACK, push_pull.BINARY_RACK)
    trees = [tree for tree in SHAPES if tree not in of_racks or len(set(racks)) > 1]
    for number in request.num_servers:
        for placement, hosts in _placements(request, racks, number).items():
            for tree in trees:
                yield Candidate(servers=hosts, tree=tree, placement=placement)


def play(request: Request, candidate: Candidate, seed: int) -> Outcome:
    """Simulates a batch."""
    try:
        of_links = scenario_of(request, candidate, is_of_links=True)
        links_s = _play(request, of_links, seed)
        expected = scenario_of(request, candidate)
        batch_s = links_s if expected == of_links else _play(request, expected, seed)
    except ScenarioError as error:
        return Outcome(candidate, None, reason=str(error))
    return Outcome(candidate, batch_s, links_s)


def slowdown(request: Request, candidate: Candidate) -> float:
    """How many times as long as links need the traffic takes."""
    if candidate.servers:
        return DIRECT_SLOWDOWN if candidate.tree == push_pull.DIRECT else 1.0
    return request.algorithms.get(candidate.algorithm, 1.0)  # others cannot be simulated at all


def _play(request: Request, batch: dict[str, Any], seed: int) -> float:
    return max(Player(scenario.parse(batch), seed).run().makespan_s, request.compute_s)


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """By what they take at most; of those that are as good within 1 % the simplest, which was tried
    first."""
    known = [(one.most_s, one) for one in outcomes if one.most_s is not None]
    limit_s = (1 + ABOUT_EQUAL) * min((most_s for most_s, _ in known), default=0.0)
    return [one for _, one in sorted(known, key=lambda pair: max(pair[0], limit_s))]


def racks_of(request: Request) -> list[int]:
    """By host, a number of its rack."""
    fabric = Player(request.empty, 0).fabric
    return [fabric.rack_of(host) for host in range(request.empty.network.num_hosts)]


def _placements(request: Request, racks: Sequence[int], number: int) -> dict[str, tuple[int, ...]]:
    """By name, the hosts of so many servers; one name where all are alike."""
    hosts = sorted(request.server_hosts)
    packed = tuple(hosts[:number])
    place_in_rack = {
        host: [other for other in hosts if racks[other] == racks[host]].index(host)
        for host in hosts
    }
    by_turns = sorted(hosts, key=lambda host: (place_in_rack[host], host))
    spread = tuple(sorted(by_turns[:number]))
    return {SPREAD: spread} if spread == packed else {SPREAD: spread, PACKED: packed}


def scenario_of(
    request: Request, candidate: Candidate, *, is_of_links: bool = False
) -> dict[str, Any]:
    """A batch, as `dmlcomm.simulate` takes it; ``is_of_links``: without what links do not show."""
    factor = 1.0 if is_of_links else slowdown(request, candidate)
    common: dict[str, Any] = {"hosts": list(request.workers)}
    if candidate.servers:
        common |= {"op": push_pull.OPERATION, "servers": list(candidate.servers)}
        common |= {"tree": candidate.tree, "answer": push_pull.PIECES}
        if is_of_links and candidate.tree != push_pull.DIRECT:
            common["grant"] = 0
    else:
        common |= {"op": ALL_REDUCE, "algorithm": candidate.algorithm}
    jobs = [
        common
        | {
            "name": f"bucket {number}",
            "size": ELEMENT_BYTES * math.ceil(bucket.num_bytes * factor / ELEMENT_BYTES),
            "start": f"{bucket.ready_s:.9f}",
            "priority": min(number, LAST_PRIORITY),
        }
        for number, bucket in enumerate(request.buckets)
    ]
    return request.network | {"jobs": jobs}
