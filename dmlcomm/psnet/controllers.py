"""The three controllers of a PSNet, and the order in which they work.

 1. The scheduler gives the topology controller (TC) a job: workers, servers, size of the model.
 2. TC computes the circuit: workers spread over the ToRs of their module, evenly, or as the rates
    of servers' NICs at each ToR are; as few workers as possible move.
 3. TC sends it to the circuit controller (CCC).
 4. CCC moves the circuits: the circuit switch of the lab.
 5. CCC acknowledges.
 6. TC tells the network controller (CNC).
 7. CNC computes the path of each worker to each server, and compares it with what the host's own
    table says; in a lab the tables are written as circuits move.
 8. TC tells the scheduler to start.

Each step is a line of the log of who does it. A worker keeps its address, and its connections.

Source: "PSNet" (JNCA 2020), section 3.3.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import networkx as nx

from dmlcomm.errors import LabError
from dmlcomm.lab.client import Client
from dmlcomm.psnet.equations import (
    HOPS_BETWEEN_MODULES,
    HOPS_IN_MODULE,
    Job,
    Phases,
    joined_transfer_s,
)
from dmlcomm.psnet.wire import Message, ask
from dmlcomm.topology import graph as topology
from dmlcomm.topology import psnet
from dmlcomm.topology.graph import Link

Log = Callable[[str], None]
# Asks the kernels of workers, each for some addresses, until a moment of `time.monotonic`: by
# worker and address, which interface leads there.
Routes = Callable[[Mapping[str, Sequence[str]], float], Mapping[tuple[str, str], str]]


def plan(graph: nx.Graph, workers: Sequence[str], servers: Sequence[str]) -> dict[str, str]:
    """Which workers move to which ToR of their module: the fewest, so that those of each module are
    spread as `spread_by_rate` says.

    Raises LabError for hosts that are none.
    """
    _check(graph, workers, psnet.WORKER)
    _check(graph, servers, psnet.SERVER)
    found: dict[str, str] = {}
    for tors in psnet.modules_of(graph):
        found |= _plan_module(graph, tors, workers, servers)
    return found


def _plan_module(
    graph: nx.Graph, tors: list[str], everybody: Sequence[str], servers: Sequence[str]
) -> dict[str, str]:
    at = {worker: _link_of(graph, worker).b.node for worker in everybody}
    workers = [worker for worker in everybody if at[worker] in tors]
    present = {tor: [worker for worker in workers if at[worker] == tor] for tor in tors}
    # ToRs that have most keep the one more that some get.
    tors = sorted(tors, key=lambda tor: -len(present[tor]))
    wanted = _spread(graph, tors, len(workers), servers)
    return dict(psnet.fewest_moves([present[tor] for tor in tors], tors, wanted))


def expected_s(
    graph: nx.Graph,
    job: Job,
    tor_of_worker: Mapping[str, str],
    servers: Sequence[str],
    compute_s: float,
) -> dict[str, float] | None:
    """A push and a pull of the whole model, and a batch with both: where all overlap, and where
    nothing does. Seconds, by equations (5) or (6), (2) and (1).

    None where they say nothing: hosts of more than two modules, NICs without a rate or with
    different ones, or unplugged.
    """
    of_workers = [_link_of(graph, worker) for worker in tor_of_worker]
    of_servers = [link for server in servers for link in topology.links_of(graph, server)]
    tors = {*tor_of_worker.values(), *(link.b.node for link in of_servers)}
    modules = [some for some in psnet.modules_of(graph) if tors & set(some)]
    worker_bps, server_bps = _rate_of(of_workers), _rate_of(of_servers)
    if not worker_bps or not server_bps or len(modules) > 2:
        return None
    module_of = {tor: number for number, some in enumerate(modules) for tor in some}
    at_servers = [module_of[topology.links_of(graph, server)[0].b.node] for server in servers]
    first = at_servers.count(0), sum(module_of[tor] == 0 for tor in tor_of_worker.values())
    push_s, pull_s = (
        joined_transfer_s(
            job,
            len(modules[0]),
            first,
            worker_bps / 8,
            server_bps / worker_bps,
            HOPS_IN_MODULE if len(modules) == 1 else HOPS_BETWEEN_MODULES,
            meeting=meeting,
        )
        for meeting in _meeting(modules, list(tor_of_worker.values()), set(at_servers))
    )
    phases = Phases(pull_s, compute_s, push_s)
    return {
        "push_s": push_s,
        "pull_s": pull_s,
        "batch_min_s": phases.bct_min_s,
        "batch_max_s": phases.bct_max_s,
    }


def _meeting(
    modules: Sequence[Sequence[str]], tor_of_worker: Sequence[str], of_servers: set[int]
) -> tuple[int, int]:
    """How many workers share the port of a server that most push to, and pull from.

    A worker pushes to the port at its ToR, in another module to the one that its number says, as
    `dmlcomm.ps.pairing` chooses it. It gets weights from the port that has the number of its ToR.
    """
    place = {tor: (m, level) for m, tors in enumerate(modules) for level, tor in enumerate(tors)}
    pushes, pulls = Counter[tuple[int, int]](), Counter[int]()
    for number, tor in enumerate(tor_of_worker):
        module, level = place[tor]
        pulls[level] += 1
        for other in of_servers:
            pushes[other, level if other == module else number % len(modules[0])] += 1
    return max(pushes.values()), max(pulls.values())


def paths(
    graph: nx.Graph, workers: Sequence[str], servers: Sequence[str]
) -> dict[tuple[str, str], tuple[str, str]]:
    """By worker and server: the worker's interface, and the server's address at the same ToR; in
    another module, at the ToR that has its number there."""
    found = {}
    for worker, server in itertools.product(workers, servers):
        near = _link_of(graph, worker)
        far = [link for link in topology.links_of(graph, server) if link.level == near.level]
        found[worker, server] = near.a.interface, far[0].a.ip
    return found


class CircuitController:
    """CCC: moves the circuits of a lab."""

    def __init__(self, lab: str, log: Log) -> None:
        self._lab, self._log = lab, log

    def answer(self, message: Message) -> Message:
        moves = dict(message["moves"])
        self._log(f"4 moves {_shown(moves)}, dark for {message['dark_s']:g} s")
        began = time.monotonic()
        if moves:
            with Client(self._lab) as client:
                client.move(moves, float(message["dark_s"]))
        seconds = time.monotonic() - began
        self._log(f"5 acknowledges {len(moves)} circuits after {seconds:.3f} s")
        return {"seconds": seconds}


class NetworkController:
    """CNC: knows the paths, and sees that hosts have them."""

    def __init__(self, lab: str, routes: Routes, log: Log) -> None:
        self._lab, self._routes, self._log = lab, routes, log

    def answer(self, message: Message) -> Message:
        deadline_s = time.monotonic() + float(message["timeout_s"])
        with Client(self._lab) as client:
            graph = client.graph()
        wanted = paths(graph, message["workers"], message["servers"])
        addresses: dict[str, list[str]] = {}
        for (worker, _), (_, address) in wanted.items():
            addresses.setdefault(worker, []).append(address)
        tables = self._routes(addresses, deadline_s)
        for (worker, server), (interface, address) in wanted.items():
            if (found := tables.get((worker, address))) != interface:
                raise LabError(
                    f"{worker} reaches {server} ({address}) by {found or 'nothing'}, expected "
                    f"{interface}: is it reachable at all? See `dmlcomm lab status`"
                )
        self._log(f"7 {len(wanted)} paths are in the tables of the workers")
        return {"paths": len(wanted)}


class TopologyController:
    """TC: takes jobs, and has the others do their part."""

    def __init__(self, lab: str, circuits: str, network: str, dark_s: float, log: Log) -> None:
        self._lab, self._dark_s, self._log = lab, dark_s, log
        self._circuits, self._network = circuits, network

    def answer(self, message: Message) -> Message:
        deadline_s = time.monotonic() + float(message["timeout_s"])
        with Client(self._lab) as client:
            graph = client.graph()
        workers = message.get("workers") or topology.hosts_of_role(graph, psnet.WORKER)
        servers = message.get("servers") or topology.hosts_of_role(graph, psnet.SERVER)
        size = message["model_bytes"]
        self._log(f"1 job: {len(workers)} workers, {len(servers)} servers, {size} bytes")
        moves = plan(graph, workers, servers)
        expected = _expected(graph, workers, servers, message, moves)
        pushes = ""
        if expected:
            seconds = [expected[when]["push_s"] for when in ("before", "after")]
            pushes = "; a push takes {:.3g} s now, and {:.3g} s then".format(*seconds)
        self._log(f"2 circuit: {_shown(moves)}{pushes}")
        self._log("3 asks the circuit controller")
        moved = ask(self._circuits, {"moves": moves, "dark_s": self._dark_s}, deadline_s)
        self._log("6 tells the network controller")
        routed = ask(self._network, {"workers": workers, "servers": servers}, deadline_s)
        self._log("8 the job may start")
        return {"moves": moves, **expected, **moved, **routed}


def _expected(
    graph: nx.Graph,
    workers: Sequence[str],
    servers: Sequence[str],
    message: Message,
    moves: Mapping[str, str],
) -> Message:
    """Before and after the moves; empty where the model has no size, or nothing is known."""
    if not message["model_bytes"]:
        return {}
    job = Job(message["model_bytes"], len(servers), len(workers))
    at = {worker: _link_of(graph, worker).b.node for worker in workers}
    compute_s = float(message.get("compute_s", 0))
    before = expected_s(graph, job, at, servers, compute_s)
    after = expected_s(graph, job, {**at, **moves}, servers, compute_s)
    return {} if before is None or after is None else {"before": before, "after": after}


def _spread(
    graph: nx.Graph, tors: Sequence[str], num_workers: int, servers: Sequence[str]
) -> tuple[int, ...]:
    """Evenly where NICs of servers have no rates, all have the same, or none is of this module."""
    rates: dict[str, list[float]] = {tor: [] for tor in tors}
    for server in servers:
        for link in topology.links_of(graph, server):
            if link.b.node in rates:
                rate_bps = float(link.shape.rate_bps or 0) if link.up else 0.0
                rates[link.b.node].append(rate_bps)
    slowest = [min(rates[tor], default=0.0) for tor in tors]
    is_limited = any(rate > 0 for rate in slowest)
    return psnet.spread_by_rate(num_workers, slowest if is_limited else [1.0] * len(tors))


def _check(graph: nx.Graph, hosts: Sequence[str], role: str) -> None:
    known = topology.hosts_of_role(graph, role)
    for host in hosts:
        if host not in known:
            raise LabError(
                f"{host} is no {role} of {graph.graph['spec']}: expected "
                f"{', '.join(known) if known else 'a psnet'}"
            )
    if not hosts:
        raise LabError(f"{graph.graph['spec']} has no {role}: build a psnet")


def _rate_of(links: Sequence[Link]) -> int:
    """In bits per second, of each; 0 if one is unplugged, has none, or differs from the others."""
    rates = {(link.shape.rate_bps or 0) if link.up else 0 for link in links}
    return rates.pop() if len(rates) == 1 else 0


def _link_of(graph: nx.Graph, worker: str) -> Link:
    return topology.links_of(graph, worker)[0]


def _shown(moves: dict[str, str]) -> str:
    return ", ".join(f"{place} to {tor}" for place, tor in moves.items()) or "nothing moves"
