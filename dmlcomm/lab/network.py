"""A topology made real: a network namespace per node, a veth pair per link, a bridge per switch.

Only the holder of a lab uses this. It has one thread, and works by entering the namespace of one
node after the other; every veth pair is born inside the lab, so the machine's own network never
sees one.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from dmlcomm.errors import LabError
from dmlcomm.lab import namespaces as ns
from dmlcomm.lab import neighbours, shaping
from dmlcomm.lab.options import Options
from dmlcomm.lab.routes import Hop, Table, routing_table
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import MANAGEMENT_INTERFACE, End, Link, NodeKind
from dmlcomm.topology.shape import Shape

# Data interfaces have the kernel indices from 2 on, in level order: rails come in that order.
FIRST_INDEX = 2

_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")

_CARRIER_DEADLINE_S = 5.0
_CARRIER_POLL_S = 0.005

# As the kernel numbers them: a route to a neighbour, a route of any scope, and a gateway that
# is a neighbour in any case.
_SCOPE_LINK = 253
_SCOPE_ANY = 255
# The route to 127.0.0.1 as the kernel makes it: in its table of the host's own addresses.
_LOOPBACK = {"table": 255, "type": 2, "scope": 254, "proto": "kernel", "prefsrc": "127.0.0.1"}
_ON_LINK = 4

_BRIDGE = "br0"
_MANAGEMENT = "management"  # no node of the graph: the switch of the management network

Progress = Callable[[str, int, int], None]


class Namespaces(NamedTuple):
    """Descriptors of a node's network and host name."""

    net: int
    uts: int


class Network:
    """Builds ``graph`` on construction; ``progress(what, done, total)`` is told how far it is.

    Everything goes away with the descriptors, so with the process. Raises LabError.
    """

    def __init__(self, graph: nx.Graph, options: Options, progress: Progress) -> None:
        self.graph = graph
        self._options = options
        self._tables: dict[str, Table] = {}
        nodes = [*graph, _MANAGEMENT]
        self._namespaces = {}
        for done, node in enumerate(nodes):
            self._namespaces[node] = self._shared_with(node) or self._new_namespaces(node)
            progress("namespaces", done + 1, len(nodes))
        for done, node in enumerate(graph):
            self._make_cables(node)
            progress("links", done + 1, len(graph))
        for done, node in enumerate(nodes):
            self._set_up(node)
            progress("addresses and rates", done + 1, len(nodes))
        for link in topology.links(graph):
            self._shape_arrivals(link, Shape(), link.shape)
        neighbours.write_down(graph, self._inside)
        self._update_routes()
        # What looks at its interfaces at once would else take those whose carrier is late for dead.
        self._await_carrier([end for link in topology.links(graph) for end in link.ends], True)

    def namespaces(self, node: str) -> Namespaces:
        """Of a node of the graph; raises LabError for another name."""
        if node not in self.graph:
            raise LabError(f'there is no node "{node}" in {self.graph.graph["spec"]}')
        return self._namespaces[node]

    def move_links(self, moves: Sequence[tuple[str, str]], dark_s: float = 0.0) -> None:
        """Moves circuits, each a place and a switch, while they are in use.

        For ``dark_s`` seconds they lead nowhere. Interfaces keep carrier, address and connections;
        packets that are on their way to the old place may be lost. Raises LabError, and then
        nothing has moved.
        """
        graph = self.graph.copy()
        before, after = [], []
        for place, switch in moves:
            before.append(topology.find_circuit(self.graph, place).b)
            after.append(topology.move_link(graph, topology.find_circuit(graph, place), switch).b)
        try:
            if dark_s > 0:
                for port in after:
                    self._connect(port, None)
                time.sleep(dark_s)
            for port in after:
                self._connect(port, self._bridge_of(port.node))
        except (NetlinkError, OSError) as error:
            for port in before:
                with contextlib.suppress(NetlinkError, OSError):
                    self._connect(port, self._bridge_of(port.node))
            what = ", ".join(f"{place} to {switch}" for place, switch in moves)
            raise LabError(
                f"the kernel does not move {what}: {error}; nothing has moved"
            ) from error
        self.graph = graph
        self._forget_places()
        self._update_routes()

    def _connect(self, port: End, bridge: str | None) -> None:
        with self._inside(port.node) as ip:
            master = 0 if bridge is None else socket.if_nametoindex(bridge)
            ip.link("set", index=socket.if_nametoindex(port.interface), master=master)

    def _forget_places(self) -> None:
        """Switches learn anew where hosts are."""
        for switch in topology.nodes_of_kind(self.graph, NodeKind.SWITCH):
            with self._inside(switch) as ip:
                bridge = socket.if_nametoindex(self._bridge_of(switch))
                ip.link("set", index=bridge, kind="bridge", br_fdb_flush=True)

    def set_link(self, place: str, shape: Shape, up: bool) -> Link:
        before = topology.find_link(self.graph, place)
        if shape != before.shape:
            for end, sends in zip(before.ends, (shape, shape.back), strict=True):
                with self._inside(end.node) as ip:
                    self._shape(ip, socket.if_nametoindex(end.interface), sends)
                    shaping.renew_routes(ip)
            self._shape_arrivals(before, before.shape, shape)
        if up and not before.up:
            self._plug_in(before)
        elif before.up and not up:
            # The cable is pulled at the far end: the near one loses its carrier, not its setup.
            far = before.other(place.partition(":")[0])
            with self._inside(far.node) as ip:
                ip.link("set", index=socket.if_nametoindex(far.interface), state="down")
            self._await_carrier([end for end in before.ends if end != far], False)
        topology.update_link(self.graph, before, shape, up)
        if up != before.up:
            self._update_routes()
        return topology.find_link(self.graph, place)

    def _plug_in(self, link: Link) -> None:
        """Returns when packets flow: the kernel activates an interface some time after its carrier
        is back, and drops what is sent before."""
        for end in link.ends:
            with self._inside(end.node) as ip:
                self._activate(ip, end)
        self._await_carrier(link.ends, True)

    def _await_carrier(self, ends: Iterable[End], up: bool) -> None:
        """Waits until the kernel reports the carrier's state: that may take a second."""
        deadline = time.monotonic() + _CARRIER_DEADLINE_S
        for end in ends:
            with self._inside(end.node) as ip:
                index = socket.if_nametoindex(end.interface)
                while (ip.get_links(index)[0].get("operstate") == "UP") != up:
                    if time.monotonic() > deadline:
                        state = "no" if up else "still a"
                        raise LabError(f"{end} has {state} carrier after {_CARRIER_DEADLINE_S} s")
                    time.sleep(_CARRIER_POLL_S)

    def counters(self) -> dict[str, Any]:
        """By node: ``seconds`` of the reading, and by interface ``bytes`` of whole frames that it
        sent and ``drops`` of its queue."""
        return {
            node: {"seconds": time.monotonic(), "interfaces": self._sent(node)}
            for node in self.graph
        }

    @contextlib.contextmanager
    def _inside(self, node: str) -> Iterator[IPRoute]:
        """This process is in the network namespace of `node`; a netlink socket of it."""
        ns.setns(self._namespaces[node].net, ns.CLONE_NEWNET)
        with IPRoute(groups=0) as ip:
            yield ip

    def _shared_with(self, node: str) -> Namespaces | None:
        """Those of another switch of its fabric: there ports go from bridge to bridge."""
        fabric = self._fabric_of(node)
        if fabric is not None:
            for other, namespaces in self._namespaces.items():
                if self._fabric_of(other) == fabric:
                    return namespaces
        return None

    def _new_namespaces(self, node: str) -> Namespaces:
        namespaces = _new_namespaces(self._fabric_of(node) or node)
        self._set_kernel_parameters(node)
        return namespaces

    def _fabric_of(self, node: str) -> str | None:
        fabric: str | None = self.graph.nodes.get(node, {}).get("fabric")
        return fabric

    def _bridge_of(self, node: str) -> str:
        return node if self._fabric_of(node) else _BRIDGE

    def _set_kernel_parameters(self, node: str) -> None:
        # Without IPv6 there are no router solicitations in the counters.
        _write_parameter("ipv6/conf/all/disable_ipv6", "1", required=False)
        _write_parameter("ipv6/conf/default/disable_ipv6", "1", required=False)
        if node == _MANAGEMENT or self.graph.nodes[node]["kind"] == NodeKind.SWITCH:
            return
        is_router = self.graph.nodes[node]["kind"] == NodeKind.ROUTER
        _write_parameter("ipv4/ip_forward", "1" if is_router or self._options.forwarding else "0")
        _write_parameter("ipv4/fib_multipath_hash_policy", "1", required=False)
        # An address is announced and answered for on its own interface only. Else a worker that is
        # at another ToR learns the wrong Ethernet address there, and uses it when it is back.
        _write_parameter("ipv4/conf/all/arp_ignore", "1")
        _write_parameter("ipv4/conf/all/arp_announce", "2")
        if self._options.congestion:
            # Connections of a host to its own NICs have it only where the machine permits it to
            # all.
            with contextlib.suppress(LabError):
                _write_parameter("ipv4/tcp_congestion_control", self._options.congestion)

    def _make_cables(self, node: str) -> None:
        """The links that `node` is the first end of, and its way to the management network."""
        with self._inside(node) as ip:
            for position, link in enumerate(topology.links_of(self.graph, node)):
                if link.a.node == node:
                    index = None if self._fabric_of(node) else FIRST_INDEX + position
                    self._add_pair(ip, link.a.interface, index, link.b)
            if self.graph.nodes[node]["kind"] == NodeKind.HOST:
                peer = End(_MANAGEMENT, f"port{self.graph.nodes[node]['rank']}", None)
                self._add_pair(ip, MANAGEMENT_INTERFACE, None, peer)

    def _add_pair(self, ip: IPRoute, interface: str, index: int | None, peer: End) -> None:
        where = {"ifname": peer.interface, "net_ns_fd": self._namespaces[peer.node].net}
        chosen = {} if index is None else {"index": index}
        ip.link("add", ifname=interface, kind="veth", peer=where, **chosen)

    def _set_up(self, node: str) -> None:
        with self._inside(node) as ip:
            ip.link("set", index=socket.if_nametoindex("lo"), state="up")
            if node == _MANAGEMENT:
                ports = [name for _, name in socket.if_nameindex() if name != "lo"]
                _bridge(ip, _BRIDGE, ports)
                return
            ports = topology.interfaces(self.graph, node)
            if self.graph.nodes[node]["kind"] == NodeKind.SWITCH:
                _bridge(ip, self._bridge_of(node), ports)
            for link in topology.links_of(self.graph, node):
                self._set_up_end(ip, link.other(link.other(node).node), link.shape_from(node))
            if self.graph.nodes[node]["kind"] == NodeKind.HOST:
                if self._options.congestion:
                    loopback = _LOOPBACK | {"oif": socket.if_nametoindex("lo")}
                    self._replace_route(ip, "127.0.0.1/32", loopback)
                index = socket.if_nametoindex(MANAGEMENT_INTERFACE)
                _add_address(ip, index, self.graph.nodes[node]["management"])
                ip.link("set", index=index, state="up")

    def _set_up_end(self, ip: IPRoute, end: End, shape: Shape) -> None:
        index = socket.if_nametoindex(end.interface)
        self._shape(ip, index, shape)
        if end.address:
            _add_address(ip, index, end.address)
        self._activate(ip, end)

    def _shape(self, ip: IPRoute, index: int, shape: Shape) -> None:
        """MTU of the interface, and rate and delay of what it sends."""
        mtu = shape.mtu or self._options.mtu
        ip.link("set", index=index, mtu=mtu)
        shaping.shape_egress(ip, index, mtu, shape)

    def _activate(self, ip: IPRoute, end: End) -> None:
        """The kernel makes the route to the neighbours with the interface, and drops it with it."""
        index = socket.if_nametoindex(end.interface)
        ip.link("set", index=index, state="up")
        if not end.address or not self._options.congestion:
            return
        address = ipaddress.ip_interface(end.address)
        network = str(address.network)
        way = {"oif": index, "scope": _SCOPE_LINK, "prefsrc": str(address.ip), "proto": "kernel"}
        self._replace_route(ip, network, way)

    def _replace_route(self, ip: IPRoute, network: str, way: dict[str, Any]) -> None:
        """Routes choose the congestion control: the kernel lets a lab have one there that it does
        not let it have as the default of its hosts (`net.ipv4.tcp_allowed_congestion_control`)."""
        name = self._options.congestion
        metrics = {"metrics": {"cc_algo": name}} if name else {}
        try:
            ip.route("replace", dst=network, **way, **metrics)
        except NetlinkError as error:
            known = _CONGESTION_CONTROLS.read_text().split()
            if not name or name in known:
                raise
            raise LabError(
                f'this kernel has no congestion control "{name}"; it has {", ".join(known)}'
            ) from error

    def _shape_arrivals(self, link: Link, before: Shape, shape: Shape) -> None:
        if before.loss == shape.loss:
            return
        for end in link.ends:
            ns.setns(self._namespaces[end.node].net, ns.CLONE_NEWNET)
            shaping.shape_ingress(end.interface, shape)

    def _update_routes(self) -> None:
        tables = routing_table(self.graph, self._options.forwarding)
        for node, table in tables.items():
            before = self._tables.get(node, {})
            if table == before:
                continue
            with self._inside(node) as ip:
                for network, hops in table.items():
                    if before.get(network) != hops:
                        self._replace_route(ip, network, _way(network, hops))
                for network in before.keys() - table.keys():
                    with contextlib.suppress(NetlinkError):  # it went with its interface
                        ip.route("del", dst=network, scope=_SCOPE_ANY)
        self._tables = tables

    def _sent(self, node: str) -> dict[str, dict[str, int]]:
        with self._inside(node) as ip:
            sent = _sent_by_interface()
            for qdisc in ip.get_qdiscs():
                # A queue counts the headers of every frame, an interface once per large packet.
                if qdisc.get_attr("TCA_KIND") == "tbf":
                    name = socket.if_indextoname(qdisc["index"])
                    basic = qdisc.get_nested("TCA_STATS2", "TCA_STATS_BASIC")
                    queue = qdisc.get_nested("TCA_STATS2", "TCA_STATS_QUEUE")
                    sent[name] = {"bytes": basic["bytes"], "drops": queue["drops"]}
        return {name: sent[name] for name in topology.interfaces(self.graph, node)}


def _new_namespaces(node: str) -> Namespaces:
    try:
        ns.unshare(ns.CLONE_NEWNET | ns.CLONE_NEWUTS)
    except OSError as error:
        limit = "sysctl user.max_net_namespaces" if error.errno == errno.ENOSPC else "the error"
        raise LabError(f"no network namespace for {node} ({error}): see {limit}") from error
    socket.sethostname(node)
    return Namespaces(ns.open_own("net"), ns.open_own("uts"))


def _write_parameter(name: str, value: str, required: bool = True) -> None:
    """A sysctl of the network namespace that this process is in."""
    path = Path("/proc/sys/net") / name
    if not required and not path.exists():
        return
    try:
        path.write_text(value)
    except OSError as error:
        raise LabError(
            f"this kernel refuses {value} for net.{name.replace('/', '.')} in a lab "
            f"({os.strerror(error.errno or 0)})"
        ) from error


def _bridge(ip: IPRoute, name: str, ports: list[str]) -> None:
    ip.link("add", ifname=name, kind="bridge")
    bridge = socket.if_nametoindex(name)
    for port in ports:
        ip.link("set", index=socket.if_nametoindex(port), master=bridge, state="up")
    ip.link("set", index=bridge, state="up")


def _add_address(ip: IPRoute, index: int, address: str) -> None:
    host, _, prefixlen = address.partition("/")
    ip.addr("add", index=index, address=host, prefixlen=int(prefixlen))


def _way(network: str, hops: tuple[Hop, ...]) -> dict[str, Any]:
    """Netlink's parameters of a route: one neighbour, or several that share the flows.

    A gateway need not be in a network of the interface: a moved link has it at another switch.
    """
    if network == f"{hops[0].gateway}/32":
        return {"oif": socket.if_nametoindex(hops[0].interface), "scope": _SCOPE_LINK}
    ways = [
        {"gateway": h.gateway, "oif": socket.if_nametoindex(h.interface), "flags": _ON_LINK}
        for h in hops
    ]
    return ways[0] if len(ways) == 1 else {"multipath": ways}


def _sent_by_interface() -> dict[str, dict[str, int]]:
    """From /proc/net/dev: after the colon 8 columns of what arrived, then bytes, packets, errors
    and drops of what was sent."""
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, columns = line.partition(":")
        numbers = columns.split()
        found[name.strip()] = {"bytes": int(numbers[8]), "drops": int(numbers[11])}
    return found
