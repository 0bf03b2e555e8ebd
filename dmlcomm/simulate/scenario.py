"""The file of ``dmlcomm simulate``: a network, jobs on it, and what happens to it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from dmlcomm.errors import LabError
from dmlcomm.planning import network as networks
from dmlcomm.planning.network import PlanError, PlannedNetwork
from dmlcomm.planning.sizes import element_bytes, parse_size
from dmlcomm.simulate import push_pull, trunks
from dmlcomm.simulate.fields import Fields, ScenarioError, check_number, load_yaml
from dmlcomm.simulate.psnet import PREFIX, Psnet
from dmlcomm.topology import graph as topology
from dmlcomm.topology.builders import build
from dmlcomm.topology.shape import Shape
from dmlcomm.units import parse_rate

NETWORK_KEYS = ("topology", "rate", "ranks_per_host", "mtu", "ecmp", "resolution")
JOB_KEYS = (
    *("name", "op", "size", "dtype", "algorithm", "compute", "jitter", "steps", "start", "hosts"),
    *("priority", "weight", "servers", "tree", "tree_order", "chunk", "answer", "staleness"),
    "grant",
)
# As of a simulation's flows.
LAST_PRIORITY = 255
WEIGHTS = 1e-6, 1e6
# Others are trees of switches.
NETWORKS_OF_PLANS = ("flat:", "bcube:", "grid:")
EVENT_KEYS = ("at", "host", "rail", "rate", "circuits", "dark")


@dataclass(frozen=True)
class Job:
    """Ranks that compute, then call an operation, some times.

    Attributes:
        algorithm: "" for the choice of a job.
        compute_s: of each rank in each step, before the operation.
        jitter: a rank computes up to this share longer, at random.
        hosts: those that take part.
        priority: a ticket: 0 goes first.
        servers: hosts of the parameter servers of a push_pull, else none.
        tree: of `push_pull.TREES`.
        tree_order: of `push_pull.ORDERS`.
        num_chunks: of a message, or `push_pull.STREAM`.
        answer: of `push_pull.ANSWERS`.
        grant_bytes: as of `push_pull.GRANT_BYTES`; 0 where no tree passes pieces on.
    """

    name: str
    op: str
    num_bytes: int
    element_bytes: int
    algorithm: str
    compute_s: float
    jitter: float
    steps: int
    start_s: float
    hosts: tuple[int, ...]
    priority: int
    weight: float
    servers: tuple[int, ...] = ()
    tree: str = push_pull.DIRECT
    tree_order: str = push_pull.ROTATED
    num_chunks: int = 1
    answer: str = push_pull.WHOLE
    staleness: int = 0
    grant_bytes: int = 0


@dataclass(frozen=True)
class RateChange:
    """A NIC carries nothing for ``dark_s`` from ``at_s`` on, and then has another rate; None for
    the one that it had."""

    at_s: float
    host: int
    rail: int
    rate_bps: float | None
    dark_s: float


@dataclass(frozen=True)
class Move:
    """Circuits lead nowhere for ``dark_s`` from ``at_s`` on, and then to other switches.

    Attributes:
        circuits: as of `Lab.circuit`: a node with one circuit, and the switch it is moved to.
    """

    at_s: float
    circuits: dict[str, str]
    dark_s: float


@dataclass(frozen=True)
class Scenario:
    """A network, its jobs, and what happens to it.

    Attributes:
        network: as ranks see it: a flat one where switches form a tree.
        tree: the switches between its hosts, if some lead to others.
        psnet: its modules, if it is a PSNet.
        moves: of circuits, by time; the dark time of NICs that move is among the ``changes``.
        ecmp: of `trunks.ECMP`.
        resolution_s: links are shared anew at most once in this time; 0 for at every change.
    """

    network: PlannedNetwork
    jobs: tuple[Job, ...]
    changes: tuple[RateChange, ...]
    tree: nx.Graph | None = None
    ecmp: str = trunks.HASH
    resolution_s: float = 0
    psnet: Psnet | None = None
    moves: tuple[Move, ...] = ()

    @property
    def topology(self) -> str:
        """The text that names it."""
        if self.psnet is not None:
            return self.psnet.text
        return str(self.network if self.tree is None else self.tree.graph["spec"])


def load(path: str) -> Scenario:
    """Reads a file. Raises ScenarioError, and PlanError for the network, sizes and types."""
    return parse(load_yaml(path))


def parse(content: Any) -> Scenario:
    """Checks what a file holds. Raises as `load` does."""
    fields = Fields(content, "the scenario", (*NETWORK_KEYS, "jobs", "events"))
    network, tree, psnet = _network(fields)
    if network.num_hosts < 2:
        raise ScenarioError("a scenario needs two hosts or more: inside one, no links are shared")
    jobs = [_job(item, i, network, psnet) for i, item in enumerate(fields.items("jobs"))]
    if not jobs:
        raise ScenarioError("the scenario has no jobs: expected a list of one or more")
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(f'two jobs have the name "{name}": names must differ')
    changes, moves = _events(fields, network, tree, psnet)
    _check_apart(
        (one.at_s, one.dark_s, f"concerns rail {one.rail} of host {one.host}") for one in changes
    )
    _check_apart(
        (one.at_s, one.dark_s, f"moves {place}") for one in moves for place in one.circuits
    )
    resolution_s = fields.seconds("resolution", 0)
    ecmp = _ecmp(fields, tree)
    return Scenario(network, tuple(jobs), tuple(changes), tree, ecmp, resolution_s, psnet, moves)


def _network(fields: Fields) -> tuple[PlannedNetwork, nx.Graph | None, Psnet | None]:
    text, rate = fields.text("topology"), fields.get("rate", "")
    rates = ",".join(map(str, rate)) if isinstance(rate, list) else str(rate)
    tree, psnet = None, None
    if trunks.is_tree(text) or text.startswith(PREFIX):
        if "," in rates or not rates:
            raise ScenarioError(f'{text} needs one "rate", that of its hosts, not "{rates}"')
        try:
            graph = build(text, [Shape(parse_rate(rates))])
        except (LabError, ValueError) as error:
            raise ScenarioError(str(error)) from error
        if text.startswith(PREFIX):
            psnet = Psnet(graph)
        else:
            tree = graph
        text = f"flat:{len(topology.hosts(graph))},1"
    elif not text.startswith(NETWORKS_OF_PLANS) and not text.endswith((".yaml", ".yml")):
        raise ScenarioError(
            f'"topology" of {fields.where} is {text}: expected flat:N,k, bcube:n,k, grid:AxB..., '
            f"fattree:..., clos:..., sip:..., psnet:... or a .yaml file"
        )
    network = networks.parse(
        text,
        rates,
        fields.whole("ranks_per_host", 1, least=1),
        fields.whole("mtu", networks.DEFAULT_MTU, least=networks.LEAST_MTU),
    )
    return network, tree, psnet


def _ecmp(fields: Fields, tree: nx.Graph | None) -> str:
    found = str(fields.get("ecmp", trunks.HASH))
    if found not in trunks.ECMP:
        raise ScenarioError(f'"ecmp" is {found}: expected {" or ".join(trunks.ECMP)}')
    has_choices = tree is not None and tree.graph["spec"].startswith(trunks.SEVERAL_WAYS)
    if not has_choices and "ecmp" in fields:
        raise ScenarioError('"ecmp" is for a fattree or clos: elsewhere no switch has a choice')
    return found


def _check_apart(events: Iterable[tuple[float, float, str]]) -> None:
    """Refuses events of a NIC or circuit that is dark: (when, seconds dark, what it does) each."""
    ends: dict[str, float] = {}
    for at_s, dark_s, what in sorted(events, key=lambda event: event[0]):
        if at_s < ends.get(what, 0):
            raise ScenarioError(
                f"an event at {at_s:g} s {what}, which is dark until {ends[what]:g} s: let it "
                "begin then, or later"
            )
        ends[what] = at_s + dark_s


def _job(content: Any, index: int, network: PlannedNetwork, psnet: Psnet | None) -> Job:
    fields = Fields(content, f"job {index}", JOB_KEYS)
    op = fields.text("op")
    if psnet is not None:
        fields = Fields(
            {"hosts": psnet.workers, "servers": psnet.servers} | content, fields.where, JOB_KEYS
        )
        _check_of_psnet(fields, op, psnet)
    hosts = _hosts(fields, "hosts", network, 1 if op == push_pull.OPERATION else 2)
    where = f'"hosts" of {fields.where}'
    num_bytes, element = _size(fields, op)
    of_servers = _of_servers(fields, op, network, num_bytes)
    if network.sizes and hosts != list(range(network.num_hosts)):
        raise ScenarioError(f"{where}: on a grid a job has all hosts, in order; leave it out")
    return Job(
        name=str(fields.get("name", f"job{index}")),
        op=op,
        num_bytes=num_bytes,
        element_bytes=element,
        algorithm=str(fields.get("algorithm", "")),
        compute_s=fields.seconds("compute", 0),
        jitter=fields.number("jitter", 0),
        steps=fields.whole("steps", 1, least=1),
        start_s=fields.seconds("start", 0),
        hosts=tuple(hosts),
        priority=fields.whole("priority", 0, least=0, most=LAST_PRIORITY),
        weight=fields.number("weight", 1, *WEIGHTS),
        **of_servers,
    )


def _size(fields: Fields, op: str) -> tuple[int, int]:
    """Bytes of a job's tensor, and of an element."""
    try:
        element = element_bytes(str(fields.get("dtype", "f32")))
        num_bytes = 0 if op == "barrier" else parse_size(fields.text("size"))
    except PlanError as error:
        raise ScenarioError(f"{fields.where}: {error}") from error
    if num_bytes % element:
        raise ScenarioError(
            f'"size" of {fields.where} is {num_bytes} bytes: expected whole elements of {element}'
        )
    return num_bytes, element


def _check_of_psnet(fields: Fields, op: str, psnet: Psnet) -> None:
    """No switch of a PSNet joins workers with workers."""
    if op != push_pull.OPERATION or fields.get("tree", push_pull.DIRECT) != push_pull.DIRECT:
        raise ScenarioError(f"{fields.where}: a PSNet is for a push_pull with the tree direct")
    everybody = range(len(psnet.nics))
    for key, members in (("hosts", psnet.workers), ("servers", psnet.servers)):
        for number in fields.numbers(key, everybody, 1, "host"):
            if number not in members:
                raise ScenarioError(
                    f'"{key}" of {fields.where}: host {number} is none of {_short(members)}, the '
                    f"{'workers' if key == 'hosts' else 'servers'} of {psnet.text}"
                )


def _short(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) < 10 else f"{numbers[0]}, {numbers[1]}, ..."


def _hosts(fields: Fields, key: str, network: PlannedNetwork, least: int) -> list[int]:
    return fields.numbers(key, range(network.num_hosts), least, "host")


def _of_servers(fields: Fields, op: str, network: PlannedNetwork, num_bytes: int) -> dict[str, Any]:
    """The fields of a job that a push_pull alone has."""
    if op != push_pull.OPERATION:
        for key in ("servers", "tree", "tree_order", "chunk", "answer", "staleness", "grant"):
            if key in fields:
                raise ScenarioError(f'"{key}" of {fields.where} is for a push_pull, not for {op}')
        return {}
    if network.sizes:
        raise ScenarioError(f"{fields.where} is a push_pull: not on a bcube or grid")
    if "servers" not in fields:
        raise ScenarioError(f'{fields.where} has no "servers": give the hosts of some, as [0, 8]')
    if "algorithm" in fields:
        raise ScenarioError(f'"algorithm" of {fields.where}: a push_pull has a "tree" instead')
    servers = tuple(_hosts(fields, "servers", network, 1))
    kind = fields.one_of("tree", push_pull.TREES)
    answer = fields.one_of("answer", push_pull.ANSWERS)
    staleness = fields.whole("staleness", 0, least=0)
    if staleness and kind != push_pull.DIRECT:
        raise ScenarioError(
            f'"staleness" of {fields.where}: trees are simulated with 0, not {staleness}; use '
            "the tree direct"
        )
    return {
        "servers": servers,
        "tree": kind,
        "tree_order": fields.one_of("tree_order", push_pull.ORDERS),
        "num_chunks": _num_chunks(fields, kind, answer, num_bytes / len(servers)),
        "answer": answer,
        "staleness": staleness,
        "grant_bytes": _grant_bytes(fields, kind, answer),
    }


def _grant_bytes(fields: Fields, kind: str, answer: str) -> int:
    if kind != push_pull.DIRECT and answer == push_pull.PIECES:
        return parse_size(str(fields.get("grant", push_pull.GRANT_BYTES)))
    if "grant" in fields:
        raise ScenarioError(
            f'"grant" of {fields.where} is for trees with the answer pieces: others need none'
        )
    return 0


def _num_chunks(fields: Fields, kind: str, answer: str, message_bytes: float) -> int:
    """Of a message."""
    if answer == push_pull.PIECES:
        if "chunk" in fields:
            raise ScenarioError(
                f'"chunk" of {fields.where}: with the answer pieces, pieces are the chunks'
            )
        return push_pull.num_pieces(message_bytes)
    if kind == push_pull.DIRECT:
        if "chunk" in fields:
            raise ScenarioError(
                f'"chunk" of {fields.where} is for trees: with direct no message is sent on'
            )
        return 1
    given = str(fields.get("chunk", "stream"))
    if given == "stream":
        return push_pull.STREAM
    chunk_bytes = parse_size(given)
    if chunk_bytes == 0:
        raise ScenarioError(f'"chunk" of {fields.where} is {given}: expected a size, or stream')
    return max(1, math.ceil(message_bytes / chunk_bytes))


def _events(
    fields: Fields, network: PlannedNetwork, tree: nx.Graph | None, psnet: Psnet | None
) -> tuple[list[RateChange], tuple[Move, ...]]:
    changes: list[RateChange] = []
    moves: list[Move] = []
    graph = tree if psnet is None else psnet.graph
    for i, item in enumerate(fields.items("events")):
        event = Fields(item, f"event {i}", EVENT_KEYS)
        if "circuits" in event:
            move = _move(event)
            moves.append(move)
            changes += _dark_nics(move, event.where, graph)
        else:
            changes += _changes(event, network, psnet)
    return changes, tuple(sorted(moves, key=lambda move: move.at_s))


def _move(fields: Fields) -> Move:
    circuits = fields.get("circuits", None)
    if not isinstance(circuits, dict) or not circuits:
        raise ScenarioError(
            f'"circuits" of {fields.where}: expected what is moved where, as {{host8: tor2}}'
        )
    for key in ("host", "rail", "rate"):
        if key in fields:
            raise ScenarioError(f'{fields.where} moves "circuits": it has no "{key}"')
    names = {str(place): str(target) for place, target in circuits.items()}
    return Move(fields.seconds("at"), names, fields.seconds("dark", 0))


def _dark_nics(move: Move, where: str, graph: nx.Graph | None) -> list[RateChange]:
    """Of the hosts that are moved. Raises ScenarioError for circuits that there are not."""
    if graph is None:
        raise ScenarioError(f'"circuits" of {where}: only a psnet or a sip has some')
    hosts = topology.hosts(graph)
    found = []
    for place, target in move.circuits.items():
        try:
            near = topology.find_circuit(graph, place).a.node
            topology.move_link(graph.copy(), topology.find_circuit(graph, place), target)
        except LabError as error:
            raise ScenarioError(f'"circuits" of {where}: {error}') from error
        if near in hosts:
            found.append(RateChange(move.at_s, hosts.index(near), 0, None, move.dark_s))
    return found


def _changes(fields: Fields, network: PlannedNetwork, psnet: Psnet | None) -> list[RateChange]:
    host = fields.get("host", None)
    hosts = list(range(network.num_hosts)) if host == "all" else [host]
    for one in hosts:
        check_number(one, f'"host" of {fields.where}', range(network.num_hosts))
    rail = fields.whole("rail", 0, least=0)
    num_rails = min(len(network.rates_bps if psnet is None else psnet.nics[one]) for one in hosts)
    if rail >= num_rails:
        raise ScenarioError(
            f'"rail" of {fields.where} is {rail}, but hosts have {num_rails} rails, numbered from 0'
        )
    text = fields.text("rate")
    try:
        rate_bps = 0 if text == "0" else parse_rate(text)
    except ValueError as error:
        raise ScenarioError(f'"rate" of {fields.where}: {error}, or 0') from error
    at_s, dark_s = fields.seconds("at"), fields.seconds("dark", 0)
    return [RateChange(at_s, one, rail, rate_bps, dark_s) for one in hosts]
