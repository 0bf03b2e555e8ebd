"""Hosts of a lab: servers on some of them, in all racks alike; proxies with workers on the rest."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmlcomm._shell import inherited_environment
from dmlcomm.lab import Lab
from dmlcomm.lab.environment import only_data_nics
from dmlcomm.topology import graph as topology

PORT = 7000


@dataclass(frozen=True)
class Network:
    """
    Attributes:
        hosts: of workers.
        servers: each on a host of its own.
        rate: of every NIC, as the lab takes it.
        racks: with as many hosts each; 1: all are at one switch.
        oversubscription: the rates of a rack's hosts over that of its uplink.
    """

    hosts: int
    servers: int
    rate: str
    racks: int = 1
    oversubscription: float = 1.0

    @property
    def topology(self) -> str:
        """As the lab takes it."""
        num = self.hosts + self.servers
        if self.racks == 1:
            return f"flat:{num},1"
        if num % self.racks:
            raise ValueError(f"{self}: expected as many hosts in each rack, with the servers'")
        return f"clos:1x{self.racks}x{num // self.racks},1x1,r={self.oversubscription:g}x1"

    def rack_of(self, host: int) -> int:
        """Of the lab's host with this number; hosts of a rack follow each other."""
        return host * self.racks // (self.hosts + self.servers)


class LabHosts:
    """The lab of a network; a context manager.

    Attributes:
        servers: hosts of servers.
        hosts: the others.
        addresses: of the servers.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._lab = Lab(network.topology, rate=network.rate)

    def __enter__(self) -> "LabHosts":
        self._lab.__enter__()
        self._graph = self._lab.graph()
        all_hosts = topology.hosts(self._graph)
        self._racks = {host: self._network.rack_of(i) for i, host in enumerate(all_hosts)}
        per_rack = len(all_hosts) // self._network.racks
        # The next one of each rack, in turns.
        in_turns = sorted(range(len(all_hosts)), key=lambda number: number % per_rack)
        self.servers = [all_hosts[number] for number in in_turns[: self._network.servers]]
        self.hosts = [host for host in all_hosts if host not in self.servers]
        self.addresses = [self._address_of(host) for host in self.servers]
        return self

    def __exit__(self, *error: object) -> None:
        self._lab.__exit__(*error)

    def rack(self, host: str) -> str:
        return f"rack{self._racks[host]}"

    def popen(
        self, host: str, command: Sequence[str], changes: Mapping[str, str], **options: Any
    ) -> "subprocess.Popen[str]":
        """A process that has all NICs of the host; its output is a pipe.

        Args:
            changes: of the environment.
        """
        environment = inherited_environment() | only_data_nics(self._graph, host) | dict(changes)
        pipes = {"stdout": subprocess.PIPE, "text": True, **options}
        return self._lab.popen(host, command, env=environment, **pipes)

    def _address_of(self, host: str) -> str:
        management = self._graph.nodes[host]["management"].partition("/")[0]
        return f"{management}:{PORT}"


def only_child_of(process: int) -> int:
    """Of what a lab's `popen` returns, the process on the host: it can be stopped."""
    (child,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(child)
