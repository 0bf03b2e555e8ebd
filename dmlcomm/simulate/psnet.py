"""Modules of PSNet: who is at which ToR, and what joins modules.

The graph is the lab's: see `dmlcomm.topology.psnet`. A worker and a server of its module meet at
the worker's ToR. A worker reaches a server of another module at the NIC that its number says, as
`dmlcomm.ps.pairing` chooses it; the server answers by its NIC at the ToR that has the number of the
worker's.

Source: "PSNet" (JNCA 2020), sections 3.1 and 4.1.
"""

import re
from collections.abc import Mapping, Sequence

import networkx as nx

from dmlcomm.simulate.trunks import Trunk
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind
from dmlcomm.topology.psnet import SERVER, modules_of

PREFIX = "psnet:"


class Psnet:
    """Hosts and trunks of joined modules.

    Attributes:
        graph: a copy of what it was made of, in which circuits move.
        servers, workers: numbers of hosts.
        nics: by host, the rates of its NICs in bits per second of whole frames.
        trunks: between modules, each way.
    """

    def __init__(self, graph: nx.Graph) -> None:
        self.graph = graph.copy()
        self.nics: list[list[float]] = []
        self._module_of: list[int] = []
        self._tor_of: list[int | None] = []  # None for servers, which are at all
        module_of = {tor: number for number, tors in enumerate(modules_of(graph)) for tor in tors}
        servers = set(topology.hosts_of_role(graph, SERVER))
        hosts = topology.hosts(graph)
        for host in hosts:
            links = topology.links_of(graph, host)
            self.nics.append([float(link.shape.rate_bps or 0) for link in links])
            self._module_of.append(module_of[links[0].b.node])
            self._tor_of.append(None if host in servers else links[0].level)
        self.servers = [number for number, host in enumerate(hosts) if host in servers]
        self.workers = [number for number, host in enumerate(hosts) if host not in servers]
        self.trunks = [trunk for link in topology.links(graph) for trunk in _trunks_of(graph, link)]
        self._number = {trunk.name: number for number, trunk in enumerate(self.trunks)}

    @property
    def text(self) -> str:
        """That names it."""
        return str(self.graph.graph["spec"])

    def move(self, moves: Mapping[str, str]) -> None:
        """Brings workers to other ToRs of their module: {"worker3": "tor1"}. Raises LabError."""
        for place, target in moves.items():
            link = topology.find_circuit(self.graph, place)
            link = topology.move_link(self.graph, link, target)
            self._tor_of[topology.hosts(self.graph).index(link.a.node)] = link.level

    def way(self, sender: int, receiver: int) -> tuple[int, list[int], int]:
        """The NIC that a message leaves by, the trunks that it passes, the NIC that it arrives at.
        One of the hosts is a server, the other a worker.
        """
        modules = self._module_of[sender], self._module_of[receiver]
        is_push = self._tor_of[receiver] is None
        level = self._tor_of[sender] if is_push else self._tor_of[receiver]
        assert level is not None
        trunks = []
        if modules[0] != modules[1]:
            trunks = [self._number[f"module {modules[0]} to {modules[1]}"]]
            if is_push:
                level = self.workers.index(sender) % len(self.nics[receiver])
        return (0, trunks, level) if is_push else (level, trunks, 0)

    def rack_of(self, host: int) -> int:
        """Of a worker, a number of its ToR."""
        same: Sequence[tuple[int, int | None]] = list(
            zip(self._module_of, self._tor_of, strict=True)
        )
        return same.index(same[host])


def _trunks_of(graph: nx.Graph, link: topology.Link) -> list[Trunk]:
    """Of a link between modules, whose switches are the routers."""
    if any(graph.nodes[end.node]["kind"] != NodeKind.ROUTER for end in link.ends):
        return []
    a, b = (int(re.sub(r"\D", "", end.node)) - 1 for end in link.ends)
    rate_bps = float(link.shape.rate_bps or 0)
    return [Trunk(f"module {a} to {b}", rate_bps), Trunk(f"module {b} to {a}", rate_bps)]
