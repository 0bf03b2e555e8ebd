"""Modules of PSNet: who is at which ToR, and what joins modules.

``psnet:P,W,R[,K=x][@i,j,...]`` is a module as the lab has it: servers with R NICs, one at each ToR,
then workers, each at one ToR. ``psnet:A+B+...`` joins modules: each pair by a trunk, through their
SuperNode switches, with R times the rate of a server's NIC each way. Numbers of hosts count module
by module.

Source: "PSNet" (JNCA 2020), sections 3.1 and 4.1.
"""

import itertools
from collections.abc import Mapping, Sequence

import networkx as nx

from dmlcomm.errors import LabError
from dmlcomm.simulate.trunks import Trunk
from dmlcomm.topology import graph as topology
from dmlcomm.topology.builders import build
from dmlcomm.topology.psnet import SERVER
from dmlcomm.topology.shape import Shape

PREFIX = "psnet:"


class Psnet:
    """Hosts and trunks of joined modules.

    Attributes:
        servers, workers: numbers of hosts.
        nics: by host, the rates of its NICs in bits per second of whole frames.
        trunks: between modules, each way.

    Raises:
        LabError: the text is no PSNet, or its modules do not fit each other.
    """

    def __init__(self, text: str, rate_bps: float) -> None:
        self.text = text
        self.servers: list[int] = []
        self.workers: list[int] = []
        self.nics: list[list[float]] = []
        self.trunks: list[Trunk] = []
        self._graphs: list[nx.Graph] = []
        self._module_of: list[int] = []
        self._tor_of: list[int | None] = []  # None for servers, which are at all
        joins = []
        for module, part in enumerate(text.removeprefix(PREFIX).split("+")):
            graph = build(PREFIX + part, [Shape(round(rate_bps))])
            self._graphs.append(graph)
            servers = set(topology.hosts_of_role(graph, SERVER))
            for host in topology.hosts(graph):
                links = topology.links_of(graph, host)
                self.nics.append([float(link.shape.rate_bps or 0) for link in links])
                self._module_of.append(module)
                is_server = host in servers
                (self.servers if is_server else self.workers).append(len(self.nics) - 1)
                self._tor_of.append(None if is_server else links[0].level)
            first = self._module_of.index(module)
            joins.append((len(self.nics[first]), self.nics[first][0]))
        if len(set(joins)) > 1:
            raise LabError(f"{text}: modules that are joined need the same R and K")
        tors, of_server = joins[0]
        if len(joins) > tors + 1:
            raise LabError(
                f"{text} has {len(joins)} modules: with {tors} ToRs each, up to {tors + 1} are "
                "all neighbours"
            )
        for a, b in itertools.permutations(range(len(joins)), 2):
            self.trunks.append(Trunk(f"module {a} to {b}", tors * of_server))
        self._number = {trunk.name: number for number, trunk in enumerate(self.trunks)}

    @property
    def graph(self) -> nx.Graph | None:
        """As the lab has it; None for several modules."""
        return self._graphs[0] if len(self._graphs) == 1 else None

    def move(self, moves: Mapping[str, str]) -> None:
        """Brings workers of a single module to other ToRs: {"worker3": "tor1"}. Raises LabError."""
        graph = self._graphs[0]
        for place, target in moves.items():
            link = topology.move_link(graph, topology.find_circuit(graph, place), target)
            self._tor_of[topology.hosts(graph).index(link.a.node)] = link.level

    def way(self, sender: int, receiver: int) -> tuple[int, list[int], int]:
        """The NIC that a message leaves by, the trunks that it passes, the NIC that it arrives at.
        One of the hosts is a server, the other a worker.
        """
        modules = self._module_of[sender], self._module_of[receiver]
        tors = [self._tor_of[sender], self._tor_of[receiver]]
        trunks = []
        if modules[0] != modules[1]:
            trunks = [self._number[f"module {modules[0]} to {modules[1]}"]]
        level = tors[0] if tors[0] is not None else tors[1]
        assert level is not None
        return (0 if tors[0] is not None else level), trunks, (0 if tors[1] is not None else level)

    def rack_of(self, host: int) -> int:
        """Of a worker, a number of its ToR."""
        same: Sequence[tuple[int, int | None]] = list(
            zip(self._module_of, self._tor_of, strict=True)
        )
        return same.index(same[host])
