"""The engine: runs cases on a network in the lab, and gives a record per case."""

import contextlib
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from benchmarks.lab_run import from_line
from benchmarks.reproduce_psnet.cases import Case
from benchmarks.reproduce_psnet.networks import Network
from dmlcomm.lab import Lab, sampling
from dmlcomm.lab.client import Client
from dmlcomm.psnet.equations import moves
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind
from dmlcomm.topology.psnet import spread

PORT = 7000
STOP_TIMEOUT_S = 20

# Counters are cumulative; the rate between two readings is not used.
READING_S = 0.01


@dataclass(frozen=True)
class Run:
    """Cases that workers do one after the other, in one lab.

    Attributes:
        rebalances: workers of a PSNet are moved to an even deployment when the first case is over.
    """

    network: Network
    cases: tuple[Case, ...]
    rebalances: bool = False

    def network_of(self, case: int) -> Network:
        """As it is during the case of that number."""
        if not (self.rebalances and case > 0):
            return self.network
        return replace(self.network, deployment=spread(self.network.workers, self.network.nics))


def measure(run: Run) -> Iterator[dict]:
    """One record per case, plain data for JSON; times in seconds."""
    network = run.network
    with Lab(network.topology, rate=f"{network.rate_bps}bit") as lab:
        servers = _addresses(lab)
        with _serving(lab, servers, network.workers):
            lines = _worker_lines(lab, run, servers)
        flows = None if network.is_psnet else _flows_above(lab, network)
    for number, case in enumerate(run.cases):
        results = [line for line in lines if line["case"] == number]
        yield context(run.network_of(number), case, flows) | merged(case, results)


def _worker_lines(lab: Lab, run: Run, servers: Sequence[str]) -> list[dict]:
    """What the workers print. Ends the program if one fails."""
    command = [sys.executable, "-m", "benchmarks.reproduce_psnet.worker", ",".join(servers)]
    command.append(json.dumps([asdict(case) for case in run.cases]))
    lines = []
    options = {"stdout": subprocess.PIPE, "text": True}
    with lab.popen_run(command, "--on", "worker*", **options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "{" not in line:
                continue
            lines.append(from_line(line))
            if run.rebalances and len(lines) == 1:
                rebalance(lab)
    if process.returncode != 0:
        raise SystemExit(f"the workers failed with exit code {process.returncode}")
    return lines


def rebalance(lab: Lab) -> None:
    """Moves as few workers as possible, so that no ToR has two more than another."""
    graph = lab.graph()
    tors = topology.nodes_of_kind(graph, NodeKind.SWITCH)
    workers = topology.hosts_of_role(graph, "worker")
    present = [tors.index(topology.links_of(graph, worker)[0].b.node) for worker in workers]
    for worker, tor in moves(present, len(tors)):
        lab.set(f"{workers[worker]}:eth0", f"tor={tor + 1}")


@contextlib.contextmanager
def _serving(lab: Lab, servers: Sequence[str], workers: int) -> Iterator[None]:
    """A parameter server on every server of the lab while the block runs."""
    serve = [sys.executable, "-m", "dmlcomm", "ps", "serve"]
    serve += ["--servers", ",".join(servers), "--workers", str(workers), "--insecure"]
    serve += ["--log-level", "warning"]
    hosts = f"servers=({' '.join(servers)})"
    command = f'{hosts}; exec {shlex.join(serve)} --index $RANK --listen "${{servers[RANK]}}"'
    quiet = {"stdout": subprocess.DEVNULL}
    process = lab.popen_run(["bash", "-c", command], "--on", "server*", **quiet)
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()


def _addresses(lab: Lab) -> list[str]:
    """Of the servers' control planes, on the management network: data NICs carry data only."""
    graph = lab.graph()
    hosts = topology.hosts_of_role(graph, "server")
    return [f"{graph.nodes[host]['management'].partition('/')[0]}:{PORT}" for host in hosts]


def _flows_above(lab: Lab, network: Network) -> float:
    """C as the switches have routed: of an edge's flows, the share of its busiest uplink.

    Pushes and pulls of one flow are the same bytes but for the first and the last pull, so an edge
    with workers and servers, whose uplinks carry both at once, is known within some per cent.
    """
    with Client(lab.name) as client:
        traffic = sampling.measure(client, READING_S)
    edges = [node for node in lab.graph() if node.startswith("edge")]
    found = []
    for edge, flows in zip(edges, network.crossing, strict=False):
        uplinks = [e for e in traffic if e.link.level > 0 and edge in _nodes(e.link.ends)]
        out_of = [d.bytes for e in uplinks for d in e.directions if d.sender.node == edge]
        into = [d.bytes for e in uplinks for d in e.directions if d.sender.node != edge]
        found += [max(flows) * max(sent) / sum(sent) for sent in (into, out_of)]
    return max(found)


def _nodes(ends: tuple[topology.End, topology.End]) -> list[str]:
    return [end.node for end in ends]


def context(network: Network, case: Case, flows: float | None) -> dict:
    """What was measured, and what the equations say of it."""
    phases = network.phases(case.model_bytes, case.compute_s)
    routed = network.phases(case.model_bytes, case.compute_s, flows) if flows else phases
    return asdict(case) | {
        "network": network.name,
        "placement": network.placement,
        "topology": network.topology,
        "rate_bps": network.rate_bps,
        "k": network.k,
        "nics": network.nics,
        "bytes": case.model_bytes,
        "transfer_theory_s": phases.push_s,
        "bct_min_s": phases.bct_min_s,
        "bct_max_s": phases.bct_max_s,
        "flows": flows,
        "bct_max_routed_s": routed.bct_max_s,
    }


def merged(case: Case, results: Sequence[dict]) -> dict:
    """Of all workers: a phase begins with the first and ends with the last of them."""
    steps = list(zip(*(result["moments"] for result in results), strict=True))
    wrong = sum(result["wrong"] for result in results)
    if case.apart:
        return {
            "push_s": statistics.median(_last(step, 1) - _first(step, 0) for step in steps),
            "pull_s": statistics.median(_last(step, 3) - _first(step, 2) for step in steps),
            "wrong": wrong,
        }
    ends = [_first(steps[0], 0), *(_last(step, 3) for step in steps)]
    steps_s = [end - before for before, end in pairwise(ends)]
    # The mean, as in the paper: what one step takes longer the next one may take shorter, as
    # workers begin it when their own weights are there.
    return {"bct_s": statistics.mean(steps_s), "steps_s": steps_s, "wrong": wrong}


def _first(step: Sequence[Sequence[float]], moment: int) -> float:
    return min(worker[moment] for worker in step)


def _last(step: Sequence[Sequence[float]], moment: int) -> float:
    return max(worker[moment] for worker in step)
