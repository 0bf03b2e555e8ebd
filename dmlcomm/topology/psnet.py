"""``psnet:P,W,R[,K=x][@i,j,...]``: a module of PSNet; ``psnet:A+B+...`` joins modules.

R ToR switches; P servers with R NICs, one at each ToR; W workers with one NIC, i of them at the
first ToR, j at the second, ...: spread evenly where nothing is said. Links of servers have K times
the rate of those of workers. The ToRs of a module are one **fabric**: a worker's link can be moved
from one to another while it is in use, as a circuit switch does it, which does not take the carrier
away.

Modules that are joined have the same R and K. Each has a SuperNode switch, ``super1``, ..., which
routes. A link leads from it to the switch of each other module, with R times the rate of a server's
NIC, and one to each of its ToRs, with the rate of all these, so that only links between modules
limit. An R-regular graph of modules that are all neighbours has R + 1. Numbers of ToRs and hosts
count on from module to module.

Addresses, after the paper's 10.mid.swid.wid (module, switch, worker; all from 1): worker i of those
that start at ToR t of module m is 10.m.t.i, and stays it wherever it is moved. The paper gives a
server one address, 10.mid.0.psid; here each of its NICs has its own, 10.m.t.(200 + psid) at ToR t,
so that workers and server NICs that meet at a ToR are in one network. The SuperNode switch is
10.m.t.254 there.

Source: "PSNet" (JNCA 2020), sections 3.1, 3.2 and 4.1.
"""

import ipaddress
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import networkx as nx

from dmlcomm.topology.graph import (
    ROUTER_LINKS,
    End,
    add_host,
    add_link,
    add_routed_link,
    add_router,
    add_switch,
    matched,
    new_graph,
    require,
)
from dmlcomm.topology.shape import MOST_RATE_BPS, Shape
from dmlcomm.units import format_rate

FORM = "psnet:P,W,R[,K=x][@i,j,...][+...]"
SERVER, WORKER = "server", "worker"

_Worker = TypeVar("_Worker")
_Tor = TypeVar("_Tor")

# Addresses of one ToR: workers from 1, servers from 201, the SuperNode switch's.
FIRST_SERVER_ADDRESS = 201
SUPER_NODE_ADDRESS = 254
MAX_SERVERS = SUPER_NODE_ADDRESS - FIRST_SERVER_ADDRESS
MAX_WORKERS_OF_TOR = FIRST_SERVER_ADDRESS - 1
MAX_TORS = 16


@dataclass(frozen=True)
class Module:
    """The numbers of one module; ``deployment``: workers at each ToR."""

    num_servers: int
    k: float
    deployment: tuple[int, ...]

    @property
    def num_tors(self) -> int:
        """R."""
        return len(self.deployment)


def build(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    modules = [_module(spec, part) for part in text.split("+")]
    same = len({(module.num_tors, module.k) for module in modules}) == 1
    require(spec, same, "modules that are joined need the same R and K")
    tors = modules[0].num_tors
    most = tors + 1
    fits = len(modules) <= most
    require(spec, fits, f"modules: at most {most} with {tors} ToRs each, not {len(modules)}")
    require(spec, len(shapes) == 1, f"rates: one, that of workers, not {len(shapes)}")
    graph = new_graph(spec)
    of_server = _times(shapes[0], modules[0].k, "K", spec)
    switches = [
        _add_module(graph, number, module, shapes[0], of_server)
        for number, module in enumerate(modules, start=1)
    ]
    if len(modules) > 1:
        between = _times(of_server, tors, "R", spec)
        _join(graph, switches, between, _times(between, len(modules) - 1, "modules", spec))
    return graph


def _module(spec: str, text: str) -> Module:
    pattern = r"(\d+),(\d+),(\d+)(?:,K=(\d+(?:\.\d+)?))?(?:@(\d+(?:,\d+)*))?"
    match = matched(spec, text, pattern, f"{FORM} (servers, workers, NICs of a server)")
    num_servers, num_workers, num_tors = (int(number) for number in match.groups()[:3])
    k = float(match[4] or 1)
    require(spec, 1 <= num_tors <= MAX_TORS, f"ToRs: from 1 to {MAX_TORS}")
    deployment = spread(num_workers, num_tors)
    if match[5]:
        deployment = tuple(int(number) for number in match[5].split(","))
        require(
            spec,
            len(deployment) == num_tors and sum(deployment) == num_workers,
            f"{num_tors} numbers behind the @ with the sum {num_workers}: workers at each ToR",
        )
    require(spec, 1 <= num_servers <= MAX_SERVERS, f"servers: from 1 to {MAX_SERVERS}")
    require(spec, num_workers >= 1, "workers: at least 1")
    most = MAX_WORKERS_OF_TOR
    require(spec, max(deployment) <= most, f"workers at a ToR: at most {most}")
    require(spec, k > 0, "K: more than 0")
    return Module(num_servers, k, deployment)


def _add_module(
    graph: nx.Graph, number: int, module: Module, of_worker: Shape, of_server: Shape
) -> list[str]:
    """Gives its ToRs."""
    servers = [add_host(graph, SERVER) for _ in range(module.num_servers)]
    workers = [add_host(graph, WORKER) for _ in range(sum(module.deployment))]
    first = (number - 1) * module.num_tors + 1
    names = [f"tor{first + t}" for t in range(module.num_tors)]
    tors = [add_switch(graph, name, f"circuit{number}") for name in names]
    for index, server in enumerate(servers):
        for level, tor in enumerate(tors):
            address = f"{_network(number, level)}.{FIRST_SERVER_ADDRESS + index}/24"
            port = End(tor, f"{server}.{level}", None)
            add_link(graph, End(server, f"eth{level}", address), port, level, of_server)
    for worker, level in zip(workers, circuit(module.deployment), strict=True):
        position = graph.degree(tors[level]) - len(servers) + 1
        address = f"{_network(number, level)}.{position}/24"
        port = End(tors[level], worker, None)
        add_link(graph, End(worker, "eth0", address), port, level, of_worker, is_circuit=True)
    return tors


def _join(graph: nx.Graph, tors: Sequence[Sequence[str]], between: Shape, below: Shape) -> None:
    """SuperNode switches: of each module, and the links to its ToRs and to the others."""
    for number, of_module in enumerate(tors, start=1):
        switch = add_router(graph, f"super{number}")
        for level, tor in enumerate(of_module):
            address = f"{_network(number, level)}.{SUPER_NODE_ADDRESS}/24"
            down = End(switch, f"port{level}", address)
            add_link(graph, End(tor, f"{tor}up", None), down, len(of_module), below)
    networks: Iterator[ipaddress.IPv4Network] = ROUTER_LINKS.subnets(new_prefix=31)
    for a, b in itertools.combinations(range(1, len(tors) + 1), 2):
        ends = (f"super{a}", f"module{b}"), (f"super{b}", f"module{a}")
        add_routed_link(graph, *ends, networks, len(tors[0]) + 1, between)


def modules_of(graph: nx.Graph) -> list[list[str]]:
    """By module, its ToRs."""
    found: dict[str, list[str]] = {}
    for node, fabric in graph.nodes(data="fabric"):
        if fabric:
            found.setdefault(fabric, []).append(node)
    return list(found.values())


def fewest_moves(
    members: Sequence[Sequence[_Worker]], tors: Sequence[_Tor], wanted: Sequence[int]
) -> list[tuple[_Worker, _Tor]]:
    """Which workers move to which ToR, the last ones of those that are too many.

    Args:
        members: of each ToR, its workers.
        wanted: of each ToR, how many it is to have; in all as many as there are.
    """
    leaving = [worker for own, num in zip(members, wanted, strict=True) for worker in own[num:]]
    places = [
        tor
        for tor, own, num in zip(tors, members, wanted, strict=True)
        for _ in range(num - len(own))
    ]
    return list(zip(leaving, places, strict=True))


def spread(workers: int, tors: int) -> tuple[int, ...]:
    """The even deployment, which the topology controller asks for: the first ToRs have one more.

    >>> spread(7, 3)
    (3, 2, 2)
    """
    if workers < 0 or tors < 1:
        raise ValueError(f"{workers} workers on {tors} ToRs: expected at least 0 on at least 1")
    each, more = divmod(workers, tors)
    return tuple(each + (tor < more) for tor in range(tors))


def spread_by_rate(workers: int, rates: Sequence[float]) -> tuple[int, ...]:
    """The deployment for ToRs at which servers have different rates: the least time of the ToR
    that is last, so a ToR gets workers as its rate is.

    Args:
        rates: by ToR, of the slowest server's NIC there; 0 for a ToR without one that works.

    >>> spread_by_rate(6, [1e9, 1e9, 5e8])
    (3, 2, 1)
    """
    if workers < 0 or not any(rate > 0 for rate in rates):
        raise ValueError(f"{workers} workers on ToRs with the rates {rates}: expected a rate")
    found = [0] * len(rates)
    for _ in range(workers):
        usable = [tor for tor, rate in enumerate(rates) if rate > 0]
        found[min(usable, key=lambda tor: (found[tor] + 1) / rates[tor])] += 1
    return tuple(found)


def circuit(deployment: Sequence[int]) -> tuple[int, ...]:
    """By worker, the index of its ToR; workers are numbered ToR by ToR.

    >>> circuit((1, 1, 4))
    (0, 1, 2, 2, 2, 2)
    """
    return tuple(tor for tor, count in enumerate(deployment) for _ in range(count))


def _network(module: int, level: int) -> str:
    return f"10.{module}.{level + 1}"


def _times(shape: Shape, factor: float, name: str, spec: str) -> Shape:
    """The same with ``factor`` times the rate; ``name`` is that of the factor."""
    if shape.rate_bps is None:
        require(spec, name != "K" or factor == 1, "K needs a rate to multiply (--rate 200mbit)")
        return shape
    rate = round(shape.rate_bps * factor)
    most = f"{name} times the rate: at most {format_rate(MOST_RATE_BPS)}, not {format_rate(rate)}"
    require(spec, rate <= MOST_RATE_BPS, most)
    return replace(shape, rate_bps=rate)
