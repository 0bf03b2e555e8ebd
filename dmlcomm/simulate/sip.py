"""The links between the switches of ``sip:PxTxN``, whose circuits move while jobs run.

Every two hosts have one way: up to the lowest switch that is above both.
"""

from collections.abc import Mapping, Sequence

import networkx as nx

from dmlcomm.simulate.trunks import Trunk
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind

PREFIX = "sip:"


class Sip:
    """Trunks of a tree by number: of each uplink of a switch what it carries up, and down.

    A trunk is the uplink's, and stays the same where the uplink is moved.
    """

    def __init__(self, graph: nx.Graph) -> None:
        self._graph = graph.copy()
        self._hosts = topology.hosts(graph)
        self.trunks: list[Trunk] = []
        self._tops: dict[int, list[str]] = {}  # by host, the switches above it
        self._number: dict[str, int] = {}  # by switch: of what its uplink carries up
        switches = set(topology.nodes_of_kind(graph, NodeKind.SWITCH))
        for link in topology.links(graph):
            if link.a.node in switches:
                assert link.shape.rate_bps is not None  # trees here are built with rates
                self._number[link.a.node] = len(self.trunks)
                for name in (f"up from {link.a.node}", f"down to {link.a.node}"):
                    self.trunks.append(Trunk(name, link.shape.rate_bps))

    def rack_of(self, host: int) -> int:
        """The number of a host's ToR: that of the first host there."""
        tors = [self._above(name) for name in self._hosts]
        return tors.index(tors[host])

    def between(self, host: int, other: int, _connection: Sequence[int]) -> list[int]:
        """Numbers of the trunks from a host to another, as circuits are now."""
        up, down = list(self._to_the_top(host)), list(self._to_the_top(other))
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        return [self._number[switch] for switch in up] + [
            self._number[switch] + 1 for switch in reversed(down)
        ]

    def move(self, moves: Mapping[str, str]) -> None:
        """Moves circuits. Raises LabError for what is none, or cannot be there."""
        for place, target in moves.items():
            topology.move_link(self._graph, topology.find_circuit(self._graph, place), target)
        self._tops.clear()

    def trunks_of(self, place: str) -> list[int]:
        """What the uplink of a ToR carries up, and down; nothing for a host."""
        up = self._number.get(place.partition(":")[0])
        return [] if up is None else [up, up + 1]

    def _to_the_top(self, host: int) -> list[str]:
        """The switches above a host, the nearest first."""
        if host not in self._tops:
            found, above = [], self._above(self._hosts[host])
            while above is not None:
                found.append(above)
                above = self._above(above)
            self._tops[host] = found
        return self._tops[host]

    def _above(self, node: str) -> str | None:
        for link in topology.links_of(self._graph, node):
            if link.a.node == node:
                return link.b.node
        return None
