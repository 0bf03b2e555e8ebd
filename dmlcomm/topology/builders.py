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
``clos:PxExH,AxC[,r=RxS]``   P pods of E edge switches with H hosts each and A aggregation switches,
                             A C core switches, all routed; hosts of an edge share H/R of a host's
                             rate upwards, those of a pod E H/(R S)
``psnet:P,W,R[,K=x][@i,j,...]``  a module of PSNet, or several, joined by +, see `psnet`
``sip:PxTxN``                a tree in which circuits can be moved, see `sip`
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

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import networkx as nx

from dmlcomm.bml import grid
from dmlcomm.errors import LabError
from dmlcomm.topology import psnet, sip
from dmlcomm.topology.graph import (
    MAX_HOSTS,
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
from dmlcomm.topology.shape import Shape

# Limits of one byte of an address: ports of a switch, switches of a level, levels below the
# management network's 255.
MAX_PORTS = 254
MAX_SWITCHES = 256
MAX_LEVELS = 100

LEVEL_OF_EDGE, LEVEL_OF_AGGREGATION, LEVEL_OF_CORE = 0, 1, 2


def build(spec: str, shapes: Sequence[Shape] = (Shape(),)) -> nx.Graph:
    """The topology that a text names, as a graph for `Lab`.

    Args:
        spec: "bcube:3,2", "grid:4x3", "flat:9,2", "fattree:4", "psnet:2,6,3", ...; see docs/lab.md.
        shapes: of the links: one for all, or one per level.

    Raises:
        LabError: there is no such topology; the text says what is possible.
    """
    name, _, parameters = spec.partition(":")
    if name not in _BUILDERS:
        known = ", ".join(_BUILDERS)
        raise LabError(f'"{spec}" is not a topology: expected one of {known}, as in bcube:3,2')
    return _BUILDERS[name](spec, parameters, shapes)


def _flat(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    """NIC l of all hosts is at switch l.0."""
    match = matched(spec, text, r"(\d+),(\d+)", "flat:N,k (hosts, NICs of each)")
    num_hosts, num_nics = map(int, match.groups())
    require(spec, 1 <= num_hosts <= MAX_PORTS, f"hosts: from 1 to {MAX_PORTS}")
    require(spec, 1 <= num_nics <= MAX_LEVELS, f"NICs: from 1 to {MAX_LEVELS}")
    graph = new_graph(spec)
    for _ in range(num_hosts):
        add_host(graph)
    for level, shape in enumerate(_by_level(spec, shapes, num_nics)):
        switch = add_switch(graph, f"switch{level}.0")
        for host in range(num_hosts):
            _plug(graph, host, level, switch, 0, port=host, shape=shape)
    return graph


def _bcube(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    """A grid with the same size on every level."""
    match = matched(spec, text, r"(\d+),(\d+)", "bcube:n,k (ports, NICs of each host)")
    ports, levels = map(int, match.groups())
    require(spec, 1 <= levels <= MAX_LEVELS, f"levels: from 1 to {MAX_LEVELS}")
    return _grid_of(spec, [ports] * levels, shapes)


def _grid(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    matched(spec, text, r"\d+(x\d+)*", "grid:AxBx... (ports on level 0, 1, ...)")
    return _grid_of(spec, [int(size) for size in text.split("x")], shapes)


def _grid_of(spec: str, sizes: Sequence[int], shapes: Sequence[Shape]) -> nx.Graph:
    """Hosts are numbers with the digits v_l < sizes[l]; v_0 counts fastest.

    Switch s of level l connects the hosts that have the same digits but v_l; s is the number that
    these other digits form.
    """
    num_hosts = grid.num_hosts(sizes)
    require(spec, 1 <= len(sizes) <= MAX_LEVELS, f"levels: from 1 to {MAX_LEVELS}")
    require(spec, all(2 <= n <= MAX_PORTS for n in sizes), f"ports: from 2 to {MAX_PORTS}")
    require(spec, num_hosts <= MAX_HOSTS, f"hosts: at most {MAX_HOSTS}, not {num_hosts}")
    least = min(sizes)
    require(spec, num_hosts // least <= MAX_SWITCHES, f"switches a level: at most {MAX_SWITCHES}")
    graph = new_graph(spec)
    for host in range(num_hosts):
        add_host(graph, digits=list(grid.to_digits(host, sizes)))
    for level, shape in enumerate(_by_level(spec, shapes, len(sizes))):
        for host in range(num_hosts):
            index = grid.switch_of(host, level, sizes)
            switch = f"switch{level}.{index}"
            if switch not in graph:
                add_switch(graph, switch)
            port = grid.to_digits(host, sizes)[level]
            _plug(graph, host, level, switch, index, port=port, shape=shape)
    return graph


def _fattree(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    """p pods of p/2 edge and p/2 aggregation switches, (p/2)^2 core switches; all are routed.

    Aggregation switch a of every pod is connected to the core switches a p/2, ..., a p/2 + p/2 - 1.
    """
    match = matched(
        spec,
        text,
        r"(\d+)(?:,r=(\d+(?:\.\d+)?))?(?:,hosts=(\d+)|@(\d+(?:,\d+)*))?",
        "fattree:p[,r=R][,hosts=H] or fattree:p[,r=R]@i,j,...",
    )
    ports, over_subscription = int(match[1]), float(match[2] or 1)
    require(spec, ports % 2 == 0 and 2 <= ports <= 16, "ports: an even number from 2 to 16")
    half = ports // 2
    most = ports**3 // 4
    # Workers at each of the first edges; the other hosts there are servers.
    deployment = [int(number) for number in match[4].split(",")] if match[4] else []
    if deployment:
        fits = max(deployment) <= half and sum(deployment) >= 1
        require(spec, fits, f"workers at an edge: at most {half}, and at least 1 of all")
    num_hosts = len(deployment) * half or int(match[3] or most)
    require(spec, 1 <= num_hosts <= most, f"hosts: from 1 to {most}")
    require(spec, over_subscription >= 1, "r: at least 1")
    roles = ["host"] * num_hosts
    if deployment:
        roles = [role for i in deployment for role in ["server"] * (half - i) + ["worker"] * i]
    (shape,) = _by_level(spec, shapes, 1)
    rate = shape.rate_bps and round(shape.rate_bps / over_subscription)
    sizes = _Tree(pods=ports, edges=half, hosts=half, aggregations=half, cores=half)
    above = replace(shape, rate_bps=rate)
    return _tree(spec, sizes, roles, [shape, above, above])


def _clos(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    """Every edge has a link to each aggregation switch of its pod, each of these to C core switches
    of its own, which it shares with those of its number in the other pods."""
    factor = r"(\d+(?:\.\d+)?)"
    match = matched(
        spec,
        text,
        rf"(\d+)x(\d+)x(\d+),(\d+)x(\d+)(?:,r={factor}x{factor})?",
        "clos:PxExH,AxC[,r=RxS] (pods, edges of a pod, hosts of an edge; aggregation switches of a "
        "pod, core switches of each)",
    )
    sizes = _Tree(*(int(number) for number in match.groups()[:5]))
    at_edge, at_aggregation = float(match[6] or 1), float(match[7] or 1)
    num_hosts = sizes.pods * sizes.edges * sizes.hosts
    require(spec, 1 <= num_hosts <= MAX_HOSTS, f"hosts: from 1 to {MAX_HOSTS}, not {num_hosts}")
    require(spec, sizes.pods < MAX_SWITCHES - 1, f"pods: at most {MAX_SWITCHES - 2}")
    require(spec, sizes.edges <= MAX_SWITCHES, f"edges of a pod: at most {MAX_SWITCHES}")
    require(spec, sizes.hosts <= MAX_PORTS // 2, f"hosts of an edge: at most {MAX_PORTS // 2}")
    fits = 1 <= sizes.aggregations <= MAX_PORTS and 1 <= sizes.cores <= MAX_PORTS
    require(spec, fits, f"aggregation switches, and core switches of each: from 1 to {MAX_PORTS}")
    require(spec, min(at_edge, at_aggregation) >= 1, "r: at least 1")
    (shape,) = _by_level(spec, shapes, 1)
    shares = [1, sizes.hosts / (sizes.aggregations * at_edge)]
    shares.append(shares[1] * sizes.edges / (sizes.cores * at_aggregation))
    rates = [shape.rate_bps and round(shape.rate_bps * share) for share in shares]
    return _tree(spec, sizes, ["host"] * num_hosts, [replace(shape, rate_bps=r) for r in rates])


@dataclass(frozen=True)
class _Tree:
    """Pods; edge switches of each, and hosts of an edge; aggregation switches of a pod, and core
    switches of each."""

    pods: int
    edges: int
    hosts: int
    aggregations: int
    cores: int


def _tree(spec: str, sizes: _Tree, roles: Sequence[str], shapes: Sequence[Shape]) -> nx.Graph:
    """The switches, hosts with these roles at the first edges, and links: by level, one shape."""
    graph = new_graph(spec)
    hosts = iter([add_host(graph, role) for role in roles])
    for core in range(sizes.aggregations * sizes.cores):
        add_router(graph, f"core{core}")
    networks = ROUTER_LINKS.subnets(new_prefix=31)
    for pod in range(sizes.pods):
        for index in range(sizes.aggregations):
            add_router(graph, f"agg{pod}.{index}")
            for port in range(sizes.cores):
                core_end = (f"core{index * sizes.cores + port}", f"port{pod}")
                agg_end = (f"agg{pod}.{index}", f"port{sizes.edges + port}")
                add_routed_link(
                    graph, agg_end, core_end, networks, LEVEL_OF_CORE, shapes[LEVEL_OF_CORE]
                )
        for index in range(sizes.edges):
            network = f"10.{pod}.{index}"
            edge = add_router(graph, f"edge{pod}.{index}", prefix=f"{network}.0/24")
            for port, host in enumerate(itertools.islice(hosts, sizes.hosts)):
                a = End(host, "eth0", f"{network}.{2 * port + 1}/31")
                b = End(edge, f"port{port}", f"{network}.{2 * port}/31")
                add_link(graph, a, b, LEVEL_OF_EDGE, shapes[LEVEL_OF_EDGE])
            for port in range(sizes.aggregations):
                ends = (edge, f"port{sizes.hosts + port}"), (f"agg{pod}.{port}", f"port{index}")
                add_routed_link(
                    graph, *ends, networks, LEVEL_OF_AGGREGATION, shapes[LEVEL_OF_AGGREGATION]
                )
    return graph


def _plug(
    graph: nx.Graph, host: int, level: int, switch: str, index: int, port: int, shape: Shape
) -> None:
    """NIC `level` of a host into a port of a switch."""
    a = End(f"host{host}", f"eth{level}", f"10.{level}.{index}.{port + 1}/24")
    add_link(graph, a, End(switch, f"port{port}", None), level, shape)


def _by_level(spec: str, shapes: Sequence[Shape], levels: int) -> list[Shape]:
    expected = f"rates: one, or {levels}" if levels > 1 else "rates: one"
    require(spec, len(shapes) in (1, levels), f"{expected}, not {len(shapes)}")
    return list(shapes) if len(shapes) == levels else [shapes[0]] * levels


_BUILDERS: dict[str, Callable[[str, str, Sequence[Shape]], nx.Graph]] = {
    "flat": _flat,
    "bcube": _bcube,
    "grid": _grid,
    "fattree": _fattree,
    "clos": _clos,
    "psnet": psnet.build,
    "sip": sip.build,
}
