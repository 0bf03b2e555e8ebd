"""The topologies that have a name, and their addresses.

============================ ======================================================================
text                         topology
============================ ======================================================================
``flat:N,k``                 N hosts with k NICs; one switch per NIC connects all hosts
``bcube:n,k``                BCube(n, k): n^k hosts with k NICs, k n^(k-1) switches of n ports
``grid:AxBx...``             BCube with a different n per level: A on level 0, B on level 1, ...
``fattree:p[,r=R][,hosts=H]``  fat tree of p-port routed switches, the first H of its p^3/4 hosts;
                             links above the edge have 1/R of the rate
``fattree:p[,r=R]@i,j,...``  the same, with i workers and p/2 - i servers at the first edge, ...
``psnet:P,W,R[,K=x][@i,j,...]``  a module of PSNet, see `psnet`
============================ ======================================================================

Addresses. NIC l of a host is ``eth<l>``, on level l. Behind switch s of level l all hosts share the
network 10.l.s.0/24; the host at port p of the switch is 10.l.s.(p+1). In a fat tree the i-th host
of edge e in pod q is 10.q.e.(2i+1), and its edge answers at 10.q.e.(2i), a network of two; links
between routed switches count through 172.16.0.0/12 in networks of two. The management network is
10.255.0.0/16: host h is the (h+1)-th address.

Source of BCube: "BML" (NeurIPS 2018), which writes a host as digits (v_{k-1}, ..., v_0); a switch
of level l connects the hosts that differ in digit l only. Source of the fat tree: Al-Fares et al.,
SIGCOMM 2008.
"""

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import networkx as nx

from dmlcomm.bml import grid as digits
from dmlcomm.errors import LabError
from dmlcomm.lab import psnet
from dmlcomm.lab.graph import (
    MAX_HOSTS,
    End,
    add_host,
    add_link,
    add_router,
    add_switch,
    new_graph,
    require,
)
from dmlcomm.lab.units import Shape

# Limits of one byte of an address: ports of a switch, switches of a level, levels below the
# management network's 255.
MAX_PORTS = 254
MAX_SWITCHES = 256
MAX_LEVELS = 100

LEVEL_OF_EDGE, LEVEL_OF_AGGREGATION, LEVEL_OF_CORE = 0, 1, 2
ROUTER_LINKS = ipaddress.IPv4Network("172.16.0.0/12")


def build(spec: str, shapes: Sequence[Shape] = (Shape(),)) -> nx.Graph:
    """The topology that a text names, as a graph for `Lab`.

    Args:
        spec: "bcube:3,2", "grid:4x3", "flat:9,2", "fattree:4", "psnet:2,6,3", ...; see docs/lab.md.
        shapes: of the links: one for all, or one per level.

    Raises:
        LabError: there is no such topology; the text says what is possible.
    """
    name, _, parameters = spec.partition(":")
    if name not in _PARSERS:
        known = ", ".join(_PARSERS)
        raise LabError(f'"{spec}" is not a topology: expected one of {known}, as in bcube:3,2')
    return _PARSERS[name](spec, parameters, shapes)


def flat(num_hosts: int, num_nics: int, shapes: Sequence[Shape], spec: str = "") -> nx.Graph:
    """``num_hosts`` hosts; NIC l of all of them is at switch l.0."""
    spec = spec or f"flat:{num_hosts},{num_nics}"
    require(spec, 1 <= num_hosts <= MAX_PORTS, f"hosts: from 1 to {MAX_PORTS}")
    require(spec, 1 <= num_nics <= MAX_LEVELS, f"NICs: from 1 to {MAX_LEVELS}")
    graph = new_graph(spec)
    for _ in range(num_hosts):
        add_host(graph)
    for level in range(num_nics):
        switch = add_switch(graph, f"switch{level}.0")
        for host in range(num_hosts):
            _plug(graph, host, level, switch, 0, port=host, shape=_of_level(shapes, level, spec))
    _require_one_or_each(spec, shapes, num_nics)
    return graph


def grid(sizes: Sequence[int], shapes: Sequence[Shape], spec: str = "") -> nx.Graph:
    """Hosts are numbers with the digits v_l < sizes[l]; v_0 counts fastest.

    Switch s of level l connects the hosts that have the same digits but v_l; s is the number that
    these other digits form.
    """
    spec = spec or "grid:" + "x".join(map(str, sizes))
    num_hosts = digits.num_hosts(sizes)
    require(spec, 1 <= len(sizes) <= MAX_LEVELS, f"levels: from 1 to {MAX_LEVELS}")
    require(spec, all(2 <= n <= MAX_PORTS for n in sizes), f"ports: from 2 to {MAX_PORTS}")
    require(spec, num_hosts <= MAX_HOSTS, f"hosts: at most {MAX_HOSTS}, not {num_hosts}")
    least = min(sizes)
    require(spec, num_hosts // least <= MAX_SWITCHES, f"switches a level: at most {MAX_SWITCHES}")
    _require_one_or_each(spec, shapes, len(sizes))
    graph = new_graph(spec)
    for host in range(num_hosts):
        add_host(graph, digits=list(digits.to_digits(host, sizes)))
    for level in range(len(sizes)):
        for host in range(num_hosts):
            index = digits.switch_of(host, level, sizes)
            switch = f"switch{level}.{index}"
            if switch not in graph:
                add_switch(graph, switch)
            shape = _of_level(shapes, level, spec)
            port = digits.to_digits(host, sizes)[level]
            _plug(graph, host, level, switch, index, port=port, shape=shape)
    return graph


def bcube(ports: int, levels: int, shapes: Sequence[Shape], spec: str = "") -> nx.Graph:
    """BCube(ports, levels): a grid with the same size on every level."""
    spec = spec or f"bcube:{ports},{levels}"
    require(spec, 1 <= levels <= MAX_LEVELS, f"levels: from 1 to {MAX_LEVELS}")
    return grid([ports] * levels, shapes, spec)


def fattree(
    ports: int,
    shapes: Sequence[Shape],
    over_subscription: float = 1.0,
    num_hosts: int | None = None,
    deployment: Sequence[int] = (),
    spec: str = "",
) -> nx.Graph:
    """p pods of p/2 edge and p/2 aggregation switches, (p/2)^2 core switches; all are routed.

    Aggregation switch a of every pod is connected to the core switches a p/2, ..., a p/2 + p/2 - 1.

    Args:
        deployment: workers at each of the first edges; the other hosts there are servers.
    """
    spec = spec or f"fattree:{ports}"
    half = ports // 2
    most = ports**3 // 4
    if deployment:
        fits = max(deployment) <= half and sum(deployment) >= 1
        require(spec, fits, f"workers at an edge: at most {half}, and at least 1 of all")
        num_hosts = len(deployment) * half
    num_hosts = most if num_hosts is None else num_hosts
    require(spec, ports % 2 == 0 and 2 <= ports <= 16, "ports: an even number from 2 to 16")
    require(spec, 1 <= num_hosts <= most, f"hosts: from 1 to {most}")
    require(spec, over_subscription >= 1, "r: at least 1")
    _require_one_or_each(spec, shapes, 1)
    graph = new_graph(spec)
    roles = [role for i in deployment for role in ["server"] * (half - i) + ["worker"] * i]
    hosts = iter([add_host(graph, role) for role in roles or ["host"] * num_hosts])
    shape = shapes[0]
    rate = shape.rate_bps and round(shape.rate_bps / over_subscription)
    above = Shape(rate, shape.delay_us, shape.loss)
    for core in range(half * half):
        add_router(graph, f"core{core}")
    networks = ROUTER_LINKS.subnets(new_prefix=31)
    for pod in range(ports):
        for index in range(half):
            add_router(graph, f"agg{pod}.{index}")
            for port in range(half):
                core_end = (f"core{index * half + port}", f"port{pod}")
                agg_end = (f"agg{pod}.{index}", f"port{half + port}")
                _route(graph, agg_end, core_end, networks, LEVEL_OF_CORE, above)
        for index in range(half):
            edge = add_router(graph, f"edge{pod}.{index}", prefix=f"10.{pod}.{index}.0/24")
            for port, host in enumerate(itertools.islice(hosts, half)):
                network = f"10.{pod}.{index}"
                a = End(host, "eth0", f"{network}.{2 * port + 1}/31")
                b = End(edge, f"port{port}", f"{network}.{2 * port}/31")
                add_link(graph, a, b, LEVEL_OF_EDGE, shape)
            for port in range(half):
                edge_end, agg_end = (
                    (edge, f"port{half + port}"),
                    (f"agg{pod}.{port}", f"port{index}"),
                )
                _route(graph, edge_end, agg_end, networks, LEVEL_OF_AGGREGATION, above)
    return graph


def _plug(
    graph: nx.Graph, host: int, level: int, switch: str, index: int, port: int, shape: Shape
) -> None:
    """NIC `level` of a host into a port of a switch."""
    a = End(f"host{host}", f"eth{level}", f"10.{level}.{index}.{port + 1}/24")
    add_link(graph, a, End(switch, f"port{port}", None), level, shape)


def _route(
    graph: nx.Graph,
    below: tuple[str, str],
    above: tuple[str, str],
    networks: Iterator[ipaddress.IPv4Network],
    level: int,
    shape: Shape,
) -> None:
    """A link between two routed switches, in the next network of two addresses."""
    network = next(networks)
    ends = [End(*end, f"{network[i]}/31") for i, end in enumerate((below, above))]
    add_link(graph, ends[0], ends[1], level, shape)


def _of_level(shapes: Sequence[Shape], level: int, spec: str) -> Shape:
    if len(shapes) > 1 and level >= len(shapes):
        raise LabError(f"{spec} has more levels than the {len(shapes)} rates given")
    return shapes[level] if len(shapes) > 1 else shapes[0]


def _require_one_or_each(spec: str, shapes: Sequence[Shape], levels: int) -> None:
    expected = f"rates: one, or {levels}" if levels > 1 else "rates: one"
    require(spec, len(shapes) in (1, levels), f"{expected}, not {len(shapes)}")


def _parse_flat(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    num_hosts, num_nics = _numbers(spec, text, r"(\d+),(\d+)", "flat:N,k (hosts, NICs of each)")
    return flat(num_hosts, num_nics, shapes, spec)


def _parse_bcube(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    ports, levels = _numbers(spec, text, r"(\d+),(\d+)", "bcube:n,k (ports, NICs of each host)")
    return bcube(ports, levels, shapes, spec)


def _parse_grid(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise LabError(f'"{spec}" is not of the form grid:AxBx... (ports on level 0, 1, ...)')
    return grid([int(size) for size in text.split("x")], shapes, spec)


def _parse_fattree(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    pattern = r"(\d+)(?:,r=(\d+(?:\.\d+)?))?(?:,hosts=(\d+)|@(\d+(?:,\d+)*))?"
    match = re.fullmatch(pattern, text)
    if match is None:
        raise LabError(
            f'"{spec}" is not of the form fattree:p[,r=R][,hosts=H] or fattree:p[,r=R]@i,j,...'
        )
    ports, over_subscription, num_hosts, deployment = match.groups()
    return fattree(
        int(ports),
        shapes,
        float(over_subscription or 1),
        int(num_hosts) if num_hosts else None,
        [int(number) for number in deployment.split(",")] if deployment else (),
        spec,
    )


def _numbers(spec: str, text: str, pattern: str, form: str) -> list[int]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise LabError(f'"{spec}" is not of the form {form}')
    return [int(number) for number in match.groups()]


_PARSERS: dict[str, Callable[[str, str, Sequence[Shape]], nx.Graph]] = {
    "flat": _parse_flat,
    "bcube": _parse_bcube,
    "grid": _parse_grid,
    "fattree": _parse_fattree,
    "psnet": psnet.parse,
}
