"""The links between the switches of a tree, and which of them a message takes."""

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from dmlcomm.topology import graph as topology
from dmlcomm.topology.builders import LEVEL_OF_CORE
from dmlcomm.topology.graph import NodeKind

SEVERAL_WAYS = ("fattree:", "clos:")
TREES = (*SEVERAL_WAYS, "sip:")

# How a switch chooses among links to equally good switches: one for all packets of a connection, or
# each packet takes the next.
HASH, PACKET = "hash", "packet"
ECMP = (HASH, PACKET)


@dataclass(frozen=True)
class Trunk:
    """What carries bytes from one switch to another: a cable, one way; with `PACKET` all cables
    from an edge or a pod upwards, or down to it, which carry equal parts of everything.

    Attributes:
        rate_bps: of whole Ethernet frames.
    """

    name: str
    rate_bps: float


def is_tree(text: str) -> bool:
    """Whether a topology has links between switches."""
    return text.startswith(TREES)


class Trunks:
    """The trunks of a tree by number.

    Args:
        seed: draws the choices of `HASH`.
    """

    def __init__(self, graph: nx.Graph, ecmp: str, seed: int) -> None:
        self._ecmp = ecmp
        self._seed = seed
        self._edge_of = [
            topology.links_of(graph, host)[0].other(host).node for host in topology.hosts(graph)
        ]
        self._above: dict[str, list[str]] = {}  # by switch
        self._below: dict[tuple[str, str], str] = {}  # by core and pod
        self.trunks: list[Trunk] = []
        self._number: dict[str, int] = {}  # by name
        routers = set(topology.nodes_of_kind(graph, NodeKind.ROUTER))
        for link in topology.links(graph):
            lower, upper = link.a.node, link.b.node
            if lower not in routers:
                continue
            self._above.setdefault(lower, []).append(upper)
            if link.level == LEVEL_OF_CORE:
                self._below[upper, _pod(lower)] = lower
            assert link.shape.rate_bps is not None  # trees here are built with rates
            self._add(lower, upper, link.shape.rate_bps)

    def _add(self, lower: str, upper: str, rate_bps: float) -> None:
        """A cable: two trunks, or a part of two."""
        names = f"{lower} to {upper}", f"{upper} to {lower}"
        if self._ecmp == PACKET:
            group = _group(lower)
            names = f"up from {group}", f"down to {group}"
        for name in names:
            number = self._number.setdefault(name, len(self.trunks))
            if number == len(self.trunks):
                self.trunks.append(Trunk(name, 0))
            self.trunks[number] = Trunk(name, self.trunks[number].rate_bps + rate_bps)

    def rack_of(self, host: int) -> int:
        """The number of a host's edge: that of the first host there."""
        return self._edge_of.index(self._edge_of[host])

    def between(self, host: int, other: int, connection: Sequence[int]) -> list[int]:
        """Numbers of the trunks from a host to another. Choices depend on the ``connection``."""
        edge, last = self._edge_of[host], self._edge_of[other]
        if edge == last:
            return []
        if self._ecmp == PACKET:
            groups = [_group(edge), _group(last)]
            names = [f"up from {groups[0]}", f"down to {groups[1]}"]
            if _pod(edge) != _pod(last):
                names[1:1] = [f"up from pod {_pod(edge)}", f"down to pod {_pod(last)}"]
        else:
            switches = self._switches(edge, last, connection)
            names = [f"{a} to {b}" for a, b in itertools.pairwise(switches)]
        return [self._number[name] for name in names]

    def _switches(self, edge: str, last: str, connection: Sequence[int]) -> list[str]:
        up = self._choose(edge, connection)
        if _pod(edge) == _pod(last):
            return [edge, up, last]
        core = self._choose(up, connection)
        return [edge, up, core, self._below[core, _pod(last)], last]

    def _choose(self, switch: str, connection: Sequence[int]) -> str:
        text = repr((self._seed, switch, tuple(connection)))
        drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        above = self._above[switch]
        return above[drawn % len(above)]


def _pod(switch: str) -> str:
    """edge3.1 and agg3.0 are of pod "3"."""
    return re.sub(r"[a-z]+", "", switch).partition(".")[0]


def _group(switch: str) -> str:
    """Switches of which the cables upwards carry equal parts."""
    return switch if switch.startswith("edge") else f"pod {_pod(switch)}"
