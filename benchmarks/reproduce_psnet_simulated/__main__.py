"""Repeats PSNet's evaluation at scale (section 4.2) with ``dmlcomm simulate``'s simulator.

    python -m benchmarks.reproduce_psnet_simulated --folder docs --page docs/reproduction.md

Writes reproduction-psnet_simulated.json (JSON lines) to the folder and the tables to the page, and
prints them. Times are of a push and a pull, beside the paper's equations.
"""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import simulated
from benchmarks.simulated import Experiment, Record
from dmlcomm.psnet import controllers
from dmlcomm.psnet.equations import (
    Job,
    Phases,
    deployed_transfer_s,
    joined_transfer_s,
)
from dmlcomm.simulate.run import Player
from dmlcomm.simulate.scenario import parse
from dmlcomm.topology import graph as graphs
from dmlcomm.topology.builders import build
from dmlcomm.topology.psnet import SERVER, WORKER, spread, spread_by_rate
from dmlcomm.topology.shape import Shape

TORS = 3
MODEL_BYTES = 200_000_000
WORKER_BPS = 1e9
# Large frames: 0.7 % are headers, which theory gets as a lower rate.
MTU = 9000
EFFICIENCY = (MTU - 52) / (MTU + 14)
SERVERS = 16
# Of workers that move while a job trains.
DARK_S = 0.25
STEPS, MOVED_IN = 8, 4  # the latter from 1


def nics() -> Iterator[Record]:
    """Figure 6 (a): one module, by workers and K."""
    for workers in (24, 48, 72, 96):
        for k in (1, 2, 4):
            job = Job(MODEL_BYTES, SERVERS, workers)
            yield _case(
                f"psnet:{SERVERS},{workers},{TORS},K={k}",
                2 * deployed_transfer_s(job, spread(workers, TORS), _bandwidth(), k, latency_s=0),
                workers=workers,
                k=k,
            )


def modules() -> Iterator[Record]:
    """Figure 6 (b): two modules, by who is in the first."""
    for workers in (24, 48, 96):
        job = Job(MODEL_BYTES, 4, workers)
        one = 2 * deployed_transfer_s(job, spread(workers, TORS), _bandwidth(), latency_s=0)
        yield _case(f"psnet:4,{workers},{TORS}", one, workers=workers, first="all")
        for first in ((2, workers // 2), (1, workers // 2), (1, 3 * workers // 4)):
            rest = f"{4 - first[0]},{workers - first[1]}"
            theory = 2 * joined_transfer_s(job, TORS, first, _bandwidth(), latency_s=0)
            topology = f"psnet:{first[0]},{first[1]},{TORS}+{rest},{TORS}"
            yield _case(topology, theory, workers=workers, first=f"{first[0]} and {first[1]}")


def trees() -> Iterator[Record]:
    """Figure 7: PSNet and fat trees of two pods, by over-subscription."""
    for workers in (24, 48, 96):
        base = _case(f"psnet:4,{workers},{TORS}", None)
        record = {"workers": workers, "PSNet": base["seconds"]}
        for r in (1, 2, 5):
            # Two pods of 64 hosts; servers and workers are half in each.
            servers = [0, 32, 64, 96]
            hosts = [pod * 64 + 1 + i for pod in (0, 1) for i in range(workers // 2 + 1)]
            hosts = [host for host in hosts if host not in servers][:workers]
            job = {"hosts": hosts, "servers": servers}
            record[f"r = {r}"] = _case(f"fattree:16,r={r},hosts=128", None, job)["seconds"]
        yield record


def deployments() -> Iterator[Record]:
    """Workers at ToRs; also where a NIC of each server is slow."""
    even = [1.0] * TORS
    slow = [1.0, 1.0, 0.25]
    cases = [
        *[(even, deployment) for deployment in ((4, 4, 4), (3, 3, 6), (2, 2, 8), (0, 4, 8))],
        (slow, spread(12, TORS)),
        (slow, spread_by_rate(12, slow)),
    ]
    for rates, deployment in cases:
        bandwidths = [rate * _bandwidth() for rate in rates]
        job = Job(MODEL_BYTES, 2, 12)
        shares = [one / count for one, count in zip(bandwidths, deployment, strict=True) if count]
        theory = 2 * job.shard_bytes / min(*shares, _bandwidth() / 2)
        events = [
            {"at": 0, "host": server, "rail": tor, "rate": f"{round(rate * WORKER_BPS)}bit"}
            for server in range(2)
            for tor, rate in enumerate(rates)
            if rate != 1
        ]
        topology = f"psnet:2,12,{TORS}@{','.join(map(str, deployment))}"
        yield _case(topology, theory, events=events, deployment=list(deployment), rates=rates)


def bandwidths() -> Iterator[Record]:
    """A batch of VGG-16 by the rate of workers, 2 servers and 6 workers, 4 s of computing."""
    for rate in (0.2e9, 0.4e9, 0.6e9, 0.8e9, 1e9):
        job = Job(528_000_000, 2, 6)
        each = deployed_transfer_s(job, spread(6, TORS), rate / 8 * EFFICIENCY, latency_s=0)
        phases = Phases(each, 4, each)
        more = {"size": job.model_bytes, "compute": 4}
        record = _case(f"psnet:2,6,{TORS}", phases.bct_max_s, more, rate=rate)
        yield record | {"rate": rate, "bct_min_s": phases.bct_min_s}


def moves() -> Iterator[Record]:
    """Batches of VGG-16 before, while and after `dmlcomm psnet place` moves workers."""
    for text in (
        "2,6,3@1,1,4",
        "2,6,3@1,1,4+2,6,3@1,1,4",
        "2,6,3@1,1,4+2,6,3@4,1,1",
        "1,6,3@1,1,4+3,6,3@1,1,4",
        "1,9,3@1,1,7+3,3,3",
    ):
        yield _moved(f"psnet:{text}")


def _moved(spec: str) -> Record:
    graph = build(spec, [Shape(round(WORKER_BPS * EFFICIENCY))])
    workers, servers = (graphs.hosts_of_role(graph, role) for role in (WORKER, SERVER))
    plan = controllers.plan(graph, workers, servers)
    at = {worker: graphs.links_of(graph, worker)[0].b.node for worker in workers}
    phases = {"op": "push_pull", "size": 528_000_000, "compute": 4, "steps": STEPS}
    job = Job(phases["size"], len(servers), len(workers))
    theory = [
        controllers.expected_s(graph, job, tors, servers, phases["compute"])
        for tors in (at, at | plan)
    ]
    before_s, after_s = (found["batch_max_s"] for found in theory if found)
    # In the middle of the pushes of a step that takes what the equation says.
    event = {
        "at": f"{before_s * (MOVED_IN - 1) + 4 + (before_s - 4) / 4:.3f}",
        "circuits": plan,
        "dark": DARK_S,
    }
    network = {"topology": spec, "rate": f"{round(WORKER_BPS)}bit", "mtu": MTU}
    scenario = parse(network | {"jobs": [phases], "events": [event]})
    ends = [0.0, *(step.end_s for step in Player(scenario, seed=1).run().jobs[0].steps)]
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    return {
        "topology": spec,
        "moved": len(plan),
        "dark_s": DARK_S,
        "steps_s": steps,
        "before_max_s": before_s,
        "after_max_s": after_s,
    }


def _bandwidth() -> float:
    """Bytes of data per second of a worker."""
    return WORKER_BPS / 8 * EFFICIENCY


def _case(
    topology: str,
    theory_s: float | None,
    job: dict[str, Any] | None = None,
    rate: float = WORKER_BPS,
    events: Sequence[dict[str, Any]] = (),
    **record: Any,
) -> Record:
    """A push and a pull of all workers at once."""
    network = {"topology": topology, "rate": f"{round(rate)}bit", "mtu": MTU}
    jobs = [{"op": "push_pull", "size": MODEL_BYTES} | (job or {})]
    scenario = parse(network | {"jobs": jobs, "events": list(events)})
    result = Player(scenario, seed=1).run()
    return record | {"topology": topology, "seconds": result.makespan_s, "theory_s": theory_s}


def _against_theory(header: list[str], keys: list[str], records: list[Record]) -> Iterator[Any]:
    yield [*header, "simulated", "theory", "simulated / theory"]
    for record in records:
        seconds, theory = record["seconds"], record["theory_s"]
        cells = [
            ", ".join(map(str, v)) if isinstance(v := record[k], list) else str(v) for k in keys
        ]
        yield [*cells, f"{seconds:.2f} s", f"{theory:.2f} s", f"{seconds / theory:.3f}"]


def _table_of_nics(records: list[Record]) -> Iterator[list[str]]:
    return _against_theory(["workers", "K"], ["workers", "k"], records)


def _table_of_modules(records: list[Record]) -> Iterator[list[str]]:
    header = ["workers", "servers and workers in the first module"]
    return _against_theory(header, ["workers", "first"], records)


def _table_of_trees(records: list[Record]) -> Iterator[list[str]]:
    yield ["workers", "PSNet", *(f"fat tree, r = {r}" for r in (1, 2, 5))]
    for record in records:
        base = record["PSNet"]
        trees = [record[f"r = {r}"] for r in (1, 2, 5)]
        cells = [f"{seconds:.2f} s, {seconds / base:.2f}×" for seconds in trees]
        yield [str(record["workers"]), f"{base:.2f} s", *cells]


def _table_of_deployments(records: list[Record]) -> Iterator[list[str]]:
    header = ["workers at ToRs", "rates of servers' NICs there"]
    return _against_theory(header, ["deployment", "rates"], records)


def _table_of_moves(records: list[Record]) -> Iterator[list[str]]:
    yield [
        *("modules", "moved", "step before", "BCT_max", "longest step", "step after", "BCT_max"),
    ]
    for record in records:
        steps = record["steps_s"]
        before, after = statistics.median(steps[: MOVED_IN - 1]), steps[-1]
        times = before, record["before_max_s"], max(steps), after, record["after_max_s"]
        yield [
            f"`{record['topology']}`",
            str(record["moved"]),
            *(f"{seconds:.2f} s" for seconds in times),
        ]


def _table_of_bandwidths(records: list[Record]) -> Iterator[list[str]]:
    yield ["B_w", "BCT_min", "simulated", "BCT_max"]
    for record in records:
        times = (record["bct_min_s"], record["seconds"], record["theory_s"])
        yield [f"{record['rate'] / 1e6:g} Mb/s", *(f"{seconds:.2f} s" for seconds in times)]


EXPERIMENTS = {
    "nics": Experiment(nics, _table_of_nics),
    "modules": Experiment(modules, _table_of_modules),
    "trees": Experiment(trees, _table_of_trees),
    "deployments": Experiment(deployments, _table_of_deployments),
    "bandwidths": Experiment(bandwidths, _table_of_bandwidths),
    "moves": Experiment(moves, _table_of_moves),
}


if __name__ == "__main__":
    simulated.main("psnet_simulated", EXPERIMENTS, __doc__.splitlines()[0])
