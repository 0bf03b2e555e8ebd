"""The environment of what runs in a lab: the caller's own, and torchrun's variables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from dmlcomm._shell import inherited_environment
from dmlcomm.errors import LabError
from dmlcomm.lab.processes import RUN_MARK
from dmlcomm.topology import graph as topology

# The first run of a lab meets at this port of host 0, the next ones above it.
FIRST_PORT = 29_500
NUM_PORTS = 1_000


@dataclass(frozen=True)
class Job:
    """The common settings of all ranks of a run.

    Attributes:
        graph: the topology.
        hosts: those that take part, in the order of their ranks.
        ranks_per_host: m; rank r is on host r // m of them.
        mark: names the run among all runs.
        number: counts the runs of the lab from 1.
        gloo_interfaces: how many data interfaces gloo is given, from eth0 on.
    """

    graph: nx.Graph
    hosts: list[str]
    ranks_per_host: int
    mark: str
    number: int
    gloo_interfaces: int = 1

    @property
    def num_hosts(self) -> int:
        return len(self.hosts)

    @property
    def network(self) -> str:
        """How dmlcomm calls the topology: fat trees and PSNets are one network to it, as flat ones.

        So is a part of a BCube or grid. The rates are those of the hosts' links, since an interface
        of a lab does not know its own.
        """
        spec = str(self.graph.graph["spec"])
        is_whole = len(self.hosts) == len(topology.hosts(self.graph))
        shape = spec if spec.startswith(("bcube:", "grid:")) and is_whole else "flat"
        rates = [f"{rate / 10**6:.10g}mbit" for rate in self._rates_bps()]
        if len(set(rates)) == 1:
            rates = rates[:1]
        return f"{shape}@{','.join(rates)}" if rates else shape

    def _rates_bps(self) -> list[int]:
        """Of each interface, on the host where it is slowest; empty if a link has no limit."""
        of_host = [
            [link.shape.least_rate_bps for link in topology.links_of(self.graph, host)]
            for host in self.hosts
        ]
        slowest = [
            min(rate for rate in rates if rate is not None)
            for rates in zip(*of_host, strict=False)
            if None not in rates
        ]
        return slowest if len(slowest) == max(map(len, of_host)) else []

    @property
    def master_address(self) -> str:
        return str(self.graph.nodes[self.hosts[0]]["management"].partition("/")[0])

    @property
    def master_port(self) -> int:
        return FIRST_PORT + self.number % NUM_PORTS


def only_data_nics(graph: nx.Graph, host: str) -> dict[str, str]:
    """For a process that does not use the host's interface of management."""
    return {"DMLCOMM_SOCKET_IFNAME": ",".join(f"={n}" for n in topology.interfaces(graph, host))}


def of_host(job: Job, host: int, extra: Mapping[str, str]) -> dict[str, str]:
    """For a process that starts the ranks of a host itself; ``extra`` wins over what is set."""
    interfaces = topology.interfaces(job.graph, job.hosts[host])
    return {
        **inherited_environment(),
        **only_data_nics(job.graph, job.hosts[host]),
        "DMLCOMM_TOPOLOGY": job.network,
        "GLOO_SOCKET_IFNAME": ",".join(interfaces[: job.gloo_interfaces]),
        **extra,
        RUN_MARK: job.mark,
    }


def of_rank(job: Job, rank: int, extra: Mapping[str, str]) -> dict[str, str]:
    """For one rank: as torchrun would set it with --nnodes and --nproc-per-node."""
    host, local_rank = divmod(rank, job.ranks_per_host)
    world_size = job.num_hosts * job.ranks_per_host
    variables = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": job.ranks_per_host,
        "GROUP_RANK": host,
        "GROUP_WORLD_SIZE": job.num_hosts,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": job.master_address,
        "MASTER_PORT": job.master_port,
        "OMP_NUM_THREADS": inherited_environment().get("OMP_NUM_THREADS", "1"),
    }
    return of_host(job, host, {name: str(value) for name, value in variables.items()} | {**extra})


def parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    """["A=1", "B=2"] -> {"A": "1", "B": "2"}. Raises LabError."""
    for text in texts:
        if not text.partition("=")[1]:
            raise LabError(f'"{text}" sets no variable: expected NAME=VALUE')
    return {name: value for name, _, value in (text.partition("=") for text in texts)}
