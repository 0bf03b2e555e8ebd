"""Which way packets go: every shortest path, over the links that are up.

Hosts and routers forward; switches do not have addresses and are seen as one network. In a lab
without forwarding only routers do. From the graph alone, `routing_table` says for each node which
neighbours lead to each network that it is not attached to. In BCube this makes hosts relay for
those that are not their neighbours, one digit corrected per hop; in a fat tree it gives the usual
up and down with all equal paths.

If links can be moved (see `psnet`), a network does not tell the place of a host: 10.1.1.3 may
be at ToR 2 while the rest of 10.1.1.0/24 is at ToR 1. There every host has a route per address that
its own networks would lead astray. No such route depends on what the kernel has learned before a
move: its gateway is an address of an interface at the very switch that it leads to. Where hosts
have several NICs, a server sends to a worker of another module by its NIC at the ToR that has the
number of the worker's.
"""

import ipaddress
from collections import defaultdict, deque
from dataclasses import dataclass

import networkx as nx

from dmlcomm.topology.graph import End, NodeKind, ends_of, hosts, links, links_of, nodes_of_kind

EVERYWHERE = "0.0.0.0/0"


@dataclass(frozen=True, order=True)
class Hop:
    """The neighbour to send to and the own interface that leads there."""

    gateway: str
    interface: str


# Network ("10.0.1.0/24") -> the hops of all shortest paths.
Table = dict[str, tuple[Hop, ...]]


def routing_table(graph: nx.Graph, hosts_forward: bool = True) -> dict[str, Table]:
    """The routes of every host and router, beside its own networks."""
    forwarders = {*nodes_of_kind(graph, NodeKind.ROUTER), *(hosts(graph) if hosts_forward else ())}
    if any(graph.nodes[node]["fabric"] for node in nodes_of_kind(graph, NodeKind.SWITCH)):
        return _table_by_address(graph, forwarders)
    neighbours, members = _neighbours(graph)
    own = {node: {_network(e) for e in ends_of(graph, node) if e.address} for node in neighbours}
    tables: dict[str, Table] = {node: {} for node in neighbours}
    for network, attached in members.items():
        distance = _distances(neighbours, attached, forwarders)
        for node, hops in neighbours.items():
            # Linux keeps the route to a network of its own also while the cable is pulled.
            if node in attached or network in own[node] or node not in distance:
                continue
            nearer = {hop for peer, hop in hops if distance.get(peer, -1) == distance[node] - 1}
            tables[node][network] = tuple(sorted(nearer))
    for node in hosts(graph):
        tables[node] = _summarised(graph, node, tables[node])
    return tables


def _table_by_address(graph: nx.Graph, forwarders: set[str]) -> dict[str, Table]:
    """As `routing_table`, with a network of one address for each that needs it.

    In psnet:1,2,2 worker 0 (10.1.1.1), moved to ToR 2, reaches 10.1.1.201, the first NIC of the
    server, via 10.1.2.201, the second; the server reaches it through that NIC, directly.
    """
    neighbours, _ = _neighbours(graph)
    tables: dict[str, Table] = {node: {} for node in neighbours}
    attached = {node: [e for e in ends_of(graph, node) if e.address] for node in neighbours}
    level = {(end.node, end.interface): link.level for link in links(graph) for end in link.ends}
    for target in hosts(graph):
        distance = _distances(neighbours, {target}, forwarders | {target})
        for end in attached[target]:
            for node in neighbours.keys() & distance.keys() - {target}:
                nearer = _hops_to(end, distance, node, neighbours[node])
                of_level = level[end.node, end.interface]
                alike = [hop for hop in nearer if level[node, hop.interface] == of_level]
                hops = tuple(alike) or nearer
                # The kernel does this by itself: the neighbour is in the network of an interface.
                near = [e for e in attached[node] if _network(e) == _network(end)]
                if [Hop(end.ip, e.interface) for e in near] != list(hops):
                    tables[node][f"{end.ip}/32"] = hops
    return tables


def _hops_to(
    target: End, distance: dict[str, int], node: str, peers: list[tuple[str, Hop]]
) -> tuple[Hop, ...]:
    """The hops from ``node`` to an address: the very interface if they meet at a switch."""
    nearer = {hop for peer, hop in peers if distance.get(peer, -1) == distance[node] - 1}
    direct = {hop for hop in nearer if hop.gateway == target.ip}
    return tuple(sorted(direct or nearer))


Neighbours = dict[str, list[tuple[str, Hop]]]


def _neighbours(graph: nx.Graph) -> tuple[Neighbours, dict[str, set[str]]]:
    """The direct neighbours of each node, and the networks that need a route with their nodes."""
    neighbours: Neighbours = {
        node: [] for kind in (NodeKind.HOST, NodeKind.ROUTER) for node in nodes_of_kind(graph, kind)
    }
    members: dict[str, set[str]] = defaultdict(set)
    for ends in segments(graph):
        for end in ends:
            neighbours[end.node] += [
                (peer.node, Hop(peer.ip, end.interface)) for peer in ends if peer.node != end.node
            ]
            if all(graph.nodes[e.node]["kind"] == NodeKind.HOST for e in ends):
                members[_network(end)].add(end.node)
    for router in nodes_of_kind(graph, NodeKind.ROUTER):
        if graph.nodes[router]["prefix"]:
            members[graph.nodes[router]["prefix"]].add(router)
    return neighbours, members


def segments(graph: nx.Graph) -> list[list[End]]:
    """The ends with an address that reach each other directly, over links that are up."""
    segments = []
    for switches in nx.connected_components(_between_switches(graph)):
        attached = [
            link.other(s) for s in sorted(switches) for link in links_of(graph, s) if link.up
        ]
        segments.append([end for end in attached if end.node not in switches])
    for link in links(graph):
        if link.up and all(end.address for end in link.ends):
            segments.append(list(link.ends))
    return segments


def _between_switches(graph: nx.Graph) -> nx.Graph:
    """The switches, and the links between them that are up."""
    found = nx.Graph()
    found.add_nodes_from(nodes_of_kind(graph, NodeKind.SWITCH))
    found.add_edges_from(
        (link.a.node, link.b.node)
        for link in links(graph)
        if link.up and link.a.node in found and link.b.node in found
    )
    return found


def _network(end: End) -> str:
    return str(ipaddress.ip_interface(str(end.address)).network)


def _distances(neighbours: Neighbours, sources: set[str], forwarders: set[str]) -> dict[str, int]:
    """Hops to the nearest of `sources`, for every node that reaches one through `forwarders`."""
    distance = dict.fromkeys(sources, 0)
    queue = deque(sources)
    while queue:
        node = queue.popleft()
        if node not in forwarders:
            continue
        for peer, _ in neighbours[node]:
            if peer not in distance:
                distance[peer] = distance[node] + 1
                queue.append(peer)
    return distance


def _summarised(graph: nx.Graph, host: str, table: Table) -> Table:
    """One default route for a host whose only neighbour is a router."""
    first_links = links_of(graph, host)
    if len(first_links) == 1 and len(set(table.values())) == 1:
        gateway = first_links[0].other(host)
        if graph.nodes[gateway.node]["kind"] == NodeKind.ROUTER:
            return {EVERYWHERE: next(iter(table.values()))}
    return table
