"""A topology: a networkx graph whose nodes have a kind and whose edges are shaped links.

==========  =====================================================================================
on          attributes
==========  =====================================================================================
graph       ``spec``: the text it was built from
node        ``kind``: a NodeKind; hosts also have ``rank`` (their number), ``management`` (their
            address on the management network), and where a job gives them one ``role``; a router
            may have ``prefix``, the addresses behind it that other routers need one route for; a
            switch may have ``fabric``, among whose switches circuits are moved
edge        ``level``, the fields of a `Shape`, ``up``, ``is_circuit``: whether its second end can
            be moved to another switch of the fabric; and by node name ``interfaces`` and, where an
            end has an address, ``addresses`` ("10.0.0.1/24")
==========  =====================================================================================

A new topology is a function that makes such a graph with `add_host`, `add_switch`, `add_router` and
`add_link`; everything else in the lab reads it from here. The graph is plain data: it crosses
process borders as JSON.
"""

import enum
import ipaddress
import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import networkx as nx

from dmlcomm.errors import LabError
from dmlcomm.topology.shape import Shape

MANAGEMENT_INTERFACE = "mgmt0"
MANAGEMENT_NETWORK = ipaddress.ip_network("10.255.0.0/16")
# Links between routers count through it in networks of two.
ROUTER_LINKS = ipaddress.IPv4Network("172.16.0.0/12")

# A network namespace, a few interfaces and a process each: beyond this, one machine is no lab.
MAX_HOSTS = 1024


class NodeKind(enum.StrEnum):
    """The way in which a node handles packets."""

    HOST = "host"
    SWITCH = "switch"  # forwards by Ethernet address: a bridge
    ROUTER = "router"  # forwards by IP address, over all equally short paths


@dataclass(frozen=True)
class End:
    """One end of a link; ``address`` is None at a switch."""

    node: str
    interface: str
    address: str | None

    def __str__(self) -> str:
        return f"{self.node}:{self.interface}"

    @property
    def ip(self) -> str:
        if self.address is None:
            raise LabError(f"{self} is a port of a switch: it has no address")
        return self.address.partition("/")[0]


@dataclass(frozen=True)
class Link:
    """A cable between two interfaces; ``a`` is the end that was named first."""

    a: End
    b: End
    level: int
    shape: Shape
    up: bool

    @property
    def ends(self) -> tuple[End, End]:
        return self.a, self.b

    def other(self, node: str) -> End:
        return self.b if self.a.node == node else self.a

    def shape_from(self, node: str) -> Shape:
        """Of what the end at ``node`` sends."""
        return self.shape if self.a.node == node else self.shape.back


def require(spec: str, holds: bool, expected: str) -> None:
    """Raises LabError for a topology that cannot be, with what was ``expected``."""
    if not holds:
        raise LabError(f'"{spec}" is not possible: {expected}')


def matched(spec: str, text: str, pattern: str, form: str) -> re.Match[str]:
    """The parameters in ``text``, as ``pattern`` finds them. Raises LabError with the ``form``."""
    match = re.fullmatch(pattern, text)
    if match is None:
        raise LabError(f'"{spec}" is not of the form {form}')
    return match


def new_graph(spec: str) -> nx.Graph:
    return nx.Graph(spec=spec)


def add_host(graph: nx.Graph, role: str = "host", **attributes: Any) -> str:
    """Adds the next host and gives its name: host0, host1, ...; with a role server0, ..."""
    rank = len(hosts(graph))
    if rank >= MAX_HOSTS:
        raise LabError(f"{graph.graph['spec']} has more than {MAX_HOSTS} hosts")
    name = f"{role}{len(hosts_of_role(graph, role))}"
    management = f"{MANAGEMENT_NETWORK[rank + 1]}/{MANAGEMENT_NETWORK.prefixlen}"
    node = {"kind": NodeKind.HOST, "rank": rank, "role": role, "management": management}
    graph.add_node(name, **node, **attributes)
    return name


def add_switch(graph: nx.Graph, name: str, fabric: str | None = None) -> str:
    """Adds a level-2 switch; interfaces of the switches of one fabric have different names."""
    graph.add_node(name, kind=NodeKind.SWITCH, fabric=fabric)
    return name


def add_router(graph: nx.Graph, name: str, prefix: str | None = None) -> str:
    """Adds a routed switch; ``prefix`` is announced to the other routers."""
    graph.add_node(name, kind=NodeKind.ROUTER, prefix=prefix)
    return name


def add_link(
    graph: nx.Graph, a: End, b: End, level: int, shape: Shape, is_circuit: bool = False
) -> None:
    """Connects two interfaces. One link at most joins two nodes, an interface has one link."""
    if graph.has_edge(a.node, b.node):
        raise LabError(f"{a.node} and {b.node} have a link already: use a switch per link")
    for end in (a, b):
        if end.interface in interfaces(graph, end.node):
            raise LabError(f"{end} has a link already")
    graph.add_edge(
        a.node,
        b.node,
        first=a.node,
        level=level,
        up=True,
        is_circuit=is_circuit,
        interfaces={end.node: end.interface for end in (a, b)},
        addresses={end.node: end.address for end in (a, b) if end.address},
        **asdict(shape),
    )


def add_routed_link(
    graph: nx.Graph,
    a: tuple[str, str],
    b: tuple[str, str],
    networks: Iterator[ipaddress.IPv4Network],
    level: int,
    shape: Shape,
) -> None:
    """Connects interfaces of two routers, in the next network of two addresses."""
    network = next(networks)
    ends = [End(*end, f"{network[i]}/31") for i, end in enumerate((a, b))]
    add_link(graph, ends[0], ends[1], level, shape)


def hosts(graph: nx.Graph) -> list[str]:
    """Names of the hosts, by number."""
    return nodes_of_kind(graph, NodeKind.HOST)


def hosts_of_role(graph: nx.Graph, role: str) -> list[str]:
    """Names of the hosts with a role, by number: "host" where a topology gives none."""
    return [host for host in hosts(graph) if graph.nodes[host]["role"] == role]


def nodes_of_kind(graph: nx.Graph, kind: NodeKind) -> list[str]:
    """Names in the order in which they were added."""
    return [node for node, data in graph.nodes(data=True) if data["kind"] == kind]


def links(graph: nx.Graph) -> list[Link]:
    """All links, by level."""
    found = [_link(u, v, data) for u, v, data in graph.edges(data=True)]
    return sorted(found, key=lambda link: link.level)


def links_of(graph: nx.Graph, node: str) -> list[Link]:
    """The links of a node; those of a host in level order, so eth0 first."""
    found = [_link(u, v, data) for u, v, data in graph.edges(node, data=True)]
    return sorted(found, key=lambda link: link.level)


def ends_of(graph: nx.Graph, node: str) -> list[End]:
    """The interfaces of a node, in the order of `links_of`."""
    return [link.a if link.a.node == node else link.b for link in links_of(graph, node)]


def interfaces(graph: nx.Graph, node: str) -> list[str]:
    """Names of the interfaces that lead to links: for a host, its data NICs in level order."""
    return [end.interface for end in ends_of(graph, node)]


def find_link(graph: nx.Graph, place: str) -> Link:
    node, _, interface = place.partition(":")
    if node not in graph:
        raise LabError(f'there is no node "{node}" in {graph.graph["spec"]}: {_sample(graph)}')
    for link in links_of(graph, node):
        if interface in [end.interface for end in link.ends if end.node == node]:
            return link
    names = ", ".join(interfaces(graph, node))
    raise LabError(f'{node} has no interface "{interface}": it has {names}')


def update_link(graph: nx.Graph, link: Link, shape: Shape, up: bool) -> None:
    graph.edges[link.a.node, link.b.node].update(asdict(shape), up=up)


def find_circuit(graph: nx.Graph, place: str) -> Link:
    """The circuit at ``place``: "worker3:eth0", or "worker3" where it is the only one."""
    if ":" in place or place not in graph:
        return find_link(graph, place)
    found = [link for link in links_of(graph, place) if _is_circuit(graph, link)]
    found = [link for link in found if link.a.node == place]
    if len(found) != 1:
        raise _not_a_circuit(place)
    return found[0]


def move_link(graph: nx.Graph, link: Link, target: str) -> Link:
    """Connects the circuit ``link`` to another switch of the fabric; all else stays as it is.

    Raises LabError for a link that is none, or a target of another fabric.
    """
    if not _is_circuit(graph, link):
        raise _not_a_circuit(link.a)
    near, port = link.ends
    fabric = graph.nodes[port.node]["fabric"]
    switches = [node for node, data in graph.nodes(data=True) if data.get("fabric") == fabric]
    if target not in switches:
        raise LabError(
            f"{near} cannot be moved to {target}: {graph.graph['spec']} has {', '.join(switches)}"
        )
    if target == port.node:
        return link
    data = graph.edges[near.node, port.node]
    interfaces = {near.node: near.interface, target: port.interface}
    # All links that have their second end at a switch have one level.
    levels = (other.level for other in links_of(graph, target) if other.b.node == target)
    graph.remove_edge(near.node, port.node)
    level = next(levels, link.level)
    graph.add_edge(near.node, target, **data | {"level": level, "interfaces": interfaces})
    return find_link(graph, str(near))


def _is_circuit(graph: nx.Graph, link: Link) -> bool:
    return bool(graph.edges[link.a.node, link.b.node]["is_circuit"])


def _not_a_circuit(place: End | str) -> LabError:
    return LabError(
        f"{place} cannot be moved: expected the NIC of a worker of a psnet, or of a host or the "
        "uplink of a ToR of a sip"
    )


def to_json(graph: nx.Graph) -> dict[str, Any]:
    return dict(nx.node_link_data(graph, edges="links"))


def from_json(data: dict[str, Any]) -> nx.Graph:
    return nx.node_link_graph(data, edges="links")


def _link(u: str, v: str, data: dict[str, Any]) -> Link:
    if data["first"] != u:
        u, v = v, u
    a, b = (End(node, data["interfaces"][node], data["addresses"].get(node)) for node in (u, v))
    shape = Shape(**{field.name: data[field.name] for field in fields(Shape)})
    return Link(a, b, data["level"], shape, data["up"])


def _sample(graph: nx.Graph) -> str:
    names = list(itertools.islice(graph, 8))
    return "there are " + ", ".join(names) + (", ..." if len(graph) > len(names) else "")
