"""Ways to synchronise the gradients of a batch, and what a batch takes with each.

A batch is a scenario of `dmlcomm.simulate` with a job per bucket: it begins when the bucket is
ready, and earlier buckets go first, as operations of one group do. The batch is over with the last.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dmlcomm import _core
from dmlcomm.planning.pricing import ABOUT_EQUAL
from dmlcomm.simulate import push_pull, scenario
from dmlcomm.simulate.fields import ScenarioError
from dmlcomm.simulate.run import Player
from dmlcomm.strategy.request import Request

ALL_REDUCE = "all_reduce"
# Of a simulated tree, what proxies call it; without proxies workers talk to servers.
SHAPES = {
    push_pull.DIRECT: "direct",
    push_pull.BINARY: "binary",
    push_pull.FLAT_RACK: "rack",
    push_pull.BINARY_RACK: "rack-binary",
    push_pull.CHAIN: "chain",
}
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
    """``batch_s``: a batch, computing included; None if it cannot be simulated, for ``reason``."""

    candidate: Candidate
    batch_s: float | None
    reason: str = ""


def candidates(request: Request) -> Iterator[Candidate]:
    """All that are tried."""
    if len(request.workers) == request.empty.network.num_hosts or not request.empty.network.sizes:
        yield Candidate()
        for name in _algorithms(request):
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
        batch = scenario.parse(_scenario(request, candidate))
        makespan_s = Player(batch, seed).run().makespan_s
    except ScenarioError as error:
        return Outcome(candidate, None, str(error))
    return Outcome(candidate, max(makespan_s, request.compute_s))


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The best first; of those that are as good within 1 % the simplest, which was tried first."""
    known = [(one.batch_s, one) for one in outcomes if one.batch_s is not None]
    limit_s = (1 + ABOUT_EQUAL) * min((batch_s for batch_s, _ in known), default=0.0)
    return [one for _, one in sorted(known, key=lambda pair: max(pair[0], limit_s))]


def racks_of(request: Request) -> list[int]:
    """By host, a number of its rack."""
    fabric = Player(request.empty, 0).fabric
    return [fabric.rack_of(host) for host in range(request.empty.network.num_hosts)]


def _algorithms(request: Request) -> list[str]:
    network = replace(request.empty.network, num_hosts=len(request.workers))
    num_bytes = max(bucket.num_bytes for bucket in request.buckets)
    found = _core.compare(network.core(), network.of_job(), ALL_REDUCE, num_bytes, 4)
    return [price.name for price in found.prices if price.is_schedule]


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


def _scenario(request: Request, candidate: Candidate) -> dict[str, object]:
    common: dict[str, object] = {"hosts": list(request.workers)}
    if candidate.servers:
        common |= {"op": push_pull.OPERATION, "servers": list(candidate.servers)}
        common |= {"tree": candidate.tree, "answer": push_pull.PIECES}
    else:
        common |= {"op": ALL_REDUCE, "algorithm": candidate.algorithm}
    jobs = [
        common
        | {
            "name": f"bucket {number}",
            "size": bucket.num_bytes,
            "start": f"{bucket.ready_s:.9f}",
            "priority": min(number, LAST_PRIORITY),
        }
        for number, bucket in enumerate(request.buckets)
    ]
    return request.network | {"jobs": jobs}
