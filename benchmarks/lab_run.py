"""all_reduce between the hosts of a lab: one request, its results, and the bound of the network.

What ``benchmarks.lab``, ``benchmarks.multi_nic`` and ``benchmarks.reproduce_bml`` have in common.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import networkx as nx

from benchmarks.barrier import barrier_file
from benchmarks.lab_rank import Case
from benchmarks.operations import OPERATIONS
from dmlcomm.lab import Lab, Options
from dmlcomm.lab.cpu import CpuMeter
from dmlcomm.topology import graph as topology

DEADLINE_S = 1800
MIN_ITERATIONS = 5
MAX_ITERATIONS = 20


@dataclass(frozen=True)
class Request:
    """What is measured in one lab, all backends in the same processes and in turns.

    Attributes:
        topology, rate, mtu, congestion, forwarding: of the lab; ``rate`` as for `Lab`, one or one
            per level. gloo, with which ranks meet, needs forwarding on a grid, or
            ``env=("GLOO_SOCKET_IFNAME=mgmt0",)``.
        sizes: bytes of a rank's tensor.
        backends: names as for `lab_rank`.
        buckets: a tensor is reduced in that many equal parts, all started before the first is
            waited for.
        beside: bytes of the tensors that are reduced meanwhile, one after the other; 0: none.
        ranks_per_host: processes on every host.
        gloo_nics: how many NICs gloo is given; 0 is all.
        seconds: of measuring, per size and backend, about; from 5 to 20 iterations.
        warm_up: iterations before, which do not count, for each size; empty: none.
        barriers: ranks meet at a barrier of the backend before each iteration.
        iterations: instead of ``seconds``; needed where links have no rate.
        env: NAME=VALUE for the ranks.
        changes: of links, before the ranks start: an interface of all hosts ("eth1") or of one
            ("host1:eth1"), and a change as for `Lab.set`.
    """

    topology: str
    rate: str
    sizes: tuple[int, ...]
    backends: tuple[str, ...] = ("dmlcomm", "gloo")
    mtu: int = Options().mtu
    congestion: str = Options().congestion
    forwarding: bool = True
    buckets: int = 1
    beside: int = 0
    ranks_per_host: int = 1
    gloo_nics: int = 1
    seconds: float = 6.0
    warm_up: tuple[int, ...] = ()
    barriers: bool = False
    iterations: int | None = None
    env: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()

    def but(self, **changes: object) -> "Request":
        """The same with changes."""
        return replace(self, **changes)


def run(request: Request) -> list[dict]:
    """One dictionary per size and backend: what `lab_rank` measures, the request, and, where links
    have a rate, ``bound_s`` and ``ratio`` to it. ``cpu_stolen`` is the share of its cores' time
    that a virtual machine was not given meanwhile."""
    settings = Options(request.mtu, request.congestion, request.forwarding)
    with Lab(request.topology, rate=request.rate, options=settings) as lab:
        for place, change in request.changes:
            places = (
                [place] if ":" in place else [f"{h}:{place}" for h in topology.hosts(lab.graph())]
            )
            for each in places:
                lab.set(each, change)
        graph = lab.graph()
        warm_up = request.warm_up or (0,) * len(request.sizes)
        cases = [_case(request, graph, *each) for each in zip(request.sizes, warm_up, strict=True)]
        command = [sys.executable, "-m", "benchmarks.lab_rank"]
        command += [json.dumps([asdict(case) for case in cases]), ",".join(request.backends)]
        arguments = ["-m", str(request.ranks_per_host), "--gloo-nics", str(request.gloo_nics)]
        arguments += [word for assignment in request.env for word in ("-e", assignment)]
        meter = CpuMeter()
        results = measured_lines(lab, command, arguments, request.ranks_per_host)
        stolen = {"cpu_stolen": meter.use().stolen}
    return [_in_context(result, request, graph) | stolen for result in results]


def measured_lines(
    lab: Lab, command: Sequence[str], arguments: Sequence[str] = (), ranks_per_host: int = 1
) -> list[dict]:
    """`json_lines` of ranks that meet at a barrier, whose file is their last argument."""
    with barrier_file(len(topology.hosts(lab.graph())) * ranks_per_host) as barrier:
        return json_lines(lab, [*command, barrier], arguments)


def json_lines(lab: Lab, command: Sequence[str], arguments: Sequence[str] = ()) -> list[dict]:
    """The JSON objects that the ranks print, a line each. Ends the program if a rank fails.

    Args:
        arguments: for ``lab run``.
    """
    completed = lab.run(command, *arguments, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    if completed.returncode != 0:
        raise SystemExit(f"the ranks failed with exit code {completed.returncode}")
    return [from_line(line) for line in completed.stdout.splitlines() if "{" in line]


def from_line(line: str) -> dict:
    """The JSON object of a line of ``lab run``, which has its rank in front."""
    return json.loads(line[line.index("{") :])


def host_rates_bps(graph: nx.Graph) -> list[int] | None:
    """Rates of the NICs of the slowest host, in level order; None if one of them has no limit."""
    rates = [
        [link.shape.least_rate_bps for link in topology.links_of(graph, host)]
        for host in topology.hosts(graph)
    ]
    return None if any(None in host for host in rates) else min(rates, key=sum)


def all_reduce_bound_s(graph: nx.Graph, size: int) -> float | None:
    """2(H - 1)/H x S / (sum of the rates of a host's NICs), H hosts; None without rates.

    So many bytes have to leave every host, however many ranks are on it.
    """
    return bound_s(graph, size, "all_reduce")


def bound_s(graph: nx.Graph, size: int, operation: str) -> float | None:
    """What has to cross to or from the busiest host, over the rates of its NICs; None without."""
    rates = host_rates_bps(graph)
    factor = OPERATIONS[operation].wire_factor(len(topology.hosts(graph)))
    return factor * size * 8 / sum(rates) if rates else None


def iterations_in(seconds: float, bound_s: float) -> int:
    """How often to repeat what takes ``bound_s`` at least, to measure for about so long."""
    return min(max(int(seconds / bound_s), MIN_ITERATIONS), MAX_ITERATIONS)


def _case(request: Request, graph: nx.Graph, size: int, warm_up: int) -> Case:
    iterations = request.iterations
    if not iterations:
        least_s = all_reduce_bound_s(graph, size)
        if least_s is None:
            raise SystemExit("links without a rate have no bound: set a rate, or the iterations")
        iterations = iterations_in(request.seconds, least_s)
    return Case(size, iterations, request.buckets, request.beside, warm_up, request.barriers)


def _in_context(result: dict, request: Request, graph: nx.Graph) -> dict:
    least_s = all_reduce_bound_s(graph, result["size"])
    hosts = len(topology.hosts(graph))
    context = {
        **asdict(request),
        "hosts": hosts,
        "ranks": hosts * request.ranks_per_host,
        "nics": len(topology.interfaces(graph, "host0")),
        "rates_bps": host_rates_bps(graph),
        "bound_s": least_s,
        "ratio": result["seconds"] / least_s if least_s else None,
    }
    del context["sizes"], context["backends"], context["seconds"]
    return context | result
