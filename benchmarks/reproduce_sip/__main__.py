"""Repeats the simulations and the testbed of the SiP paper, and compares plans with exact ones.

    python -m benchmarks.reproduce_sip --folder docs --page docs/reproduction-sip.md

Writes reproduction-sip.json (JSON lines) to the folder and the tables to the page, and prints them.
Exact plans need SciPy (``pip install dmlcomm[plan]``). What --only leaves out keeps the records
that the file has.
"""

import time
from collections.abc import Iterator, Sequence

from benchmarks import simulated
from benchmarks.reproduce_sip import instances, testbed
from benchmarks.simulated import Experiment, Record
from dmlcomm.regroup import exact, wiring
from dmlcomm.regroup.cluster import Cluster, Flow, Job, cost, flows_of, touched
from dmlcomm.regroup.plan import ordered, plan
from dmlcomm.regroup.published import published
from dmlcomm.regroup.throughput import throughput

TAPERS = (2, 4, 8, 16)
MAPPINGS = {"mixed": instances.mixed, "random": instances.shuffled}
# The columns of plans with two and four circuit switches.
NAMES = ("RG2", "RG4", "RGn2", "RGn4", "plan2", "plan4")
# The paper's throughput with two circuit switches, in parts of its baseline's, at a taper of 2.
PAPER = {"ring": "2.3×, steered 2.5×", "ps": "1.2×, steered 1.4×"}


def throughputs() -> Iterator[Record]:
    """Mean throughput of flows, by kind of job, mapping, taper, circuit switches and plan."""
    for kind in instances.SIZE:
        for mapping, draw in MAPPINGS.items():
            for taper in TAPERS:
                began = time.perf_counter()
                found = dict(_plans(taper, instances.uniform(kind), draw(kind)))
                seconds = time.perf_counter() - began
                case = {"kind": kind, "mapping": mapping, "taper": taper, "wall_s": seconds}
                yield case | found


def _plans(taper: int, uniform: list[Job], jobs: list[Job]) -> Iterator[tuple[str, float]]:
    """Names of plans, and their throughput in bit/s."""
    cluster = instances.cluster(1)
    seats = cluster.first_seats()
    yield "uniform", _throughput(cluster, taper, uniform, seats, is_steered=False)
    yield "baseline", _throughput(cluster, taper, jobs, seats, is_steered=False)
    for switches in (1, 2, 4):
        cluster = instances.cluster(switches)
        by_paper, ours = published(cluster, jobs), plan(cluster, jobs)
        for name, seats in (("RG", by_paper), ("RGn", by_paper), ("plan", ours)):
            these = jobs if name == "RG" else [ordered(cluster, job, seats) for job in jobs]
            for suffix, is_steered in (("", False), ("+BS", True)):
                bps = _throughput(cluster, taper, these, seats, is_steered=is_steered)
                yield f"{name}{switches}{suffix}", bps


def _throughput(
    cluster: Cluster, taper: int, jobs: Sequence[Job], seats: Sequence[int], *, is_steered: bool
) -> float:
    rates = wiring.Rates(instances.RATE_BPS, taper, instances.CORE_TAPER)
    flows: list[Flow] = [flow for job in jobs for flow in flows_of(job)]
    wires = wiring.static(cluster, rates.uplinks(cluster))
    if is_steered:
        wires = wiring.steered(cluster, len(wires), wiring.tor_traffic(flows, seats))
    return throughput(cluster, rates, wires, jobs, seats).mean_bps


def plans(limit_s: float = 60) -> Iterator[Record]:
    """Plans beside exact ones."""
    for switches in (1, 2, 4):
        for name, draw in instances.CASES.items():
            yield _against_exact(name, instances.cluster(switches), draw(), limit_s)


def _against_exact(name: str, cluster: Cluster, jobs: list[Job], limit_s: float) -> Record:
    before = cluster.first_seats()
    began = time.perf_counter()
    ours = plan(cluster, jobs)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    best = exact.optimum(cluster, jobs, limit_s)
    return {
        "case": name,
        "switches": cluster.switches,
        "jobs": len(jobs),
        "before": cost(cluster, jobs, before),
        "published": cost(cluster, jobs, published(cluster, jobs)),
        "plan": cost(cluster, jobs, ours),
        "exact": best.cost,
        "bound": best.bound,
        "plan_s": seconds,
        "exact_s": time.perf_counter() - began,
        "touched": touched(before, ours),
        "fewest_touched": touched(before, exact.fewest_moves(cluster, jobs, ours)),
        "touched_published": touched(before, published(cluster, jobs)),
    }


def _table_of_throughputs(records: list[Record]) -> Iterator[list[str]]:
    names = ("uniform", *(f"{n}{s}" for n in NAMES for s in ("", "+BS")))
    yield ["jobs", "mapping", "taper", "baseline", "RG1", *names, "paper, 2 switches"]
    for record in records:
        base = record["baseline"]
        yield [
            record["kind"],
            record["mapping"],
            f"{record['taper']}×",
            f"{base / 1e9:.1f} Gb/s",
            *(f"{record[name] / base:.2f}×" for name in ("RG1", *names)),
            PAPER[record["kind"]] if record["taper"] == 2 else "-",
        ]


def _table_of_plans(records: list[Record]) -> Iterator[list[str]]:
    yield [
        *("jobs", "switches", "before", "published", "plan", "exact", "plan / bound", "plan in"),
        *("exact in", "circuits: published", "plan", "plan, fewest"),
    ]
    for r in records:
        best = f"{r['exact']}" if r["exact"] == r["bound"] else f"{r['bound']:.0f} to {r['exact']}"
        yield [
            f"{r['jobs']} {r['case']}",
            *(str(r[key]) for key in ("switches", "before", "published", "plan")),
            best,
            f"{r['plan'] / r['bound'] - 1:+.1%}",
            f"{r['plan_s']:.2f} s",
            f"{r['exact_s']:.0f} s",
            *(str(r[key]) for key in ("touched_published", "touched", "fewest_touched")),
        ]


EXPERIMENTS = {
    "throughputs": Experiment(throughputs, _table_of_throughputs),
    "plans": Experiment(plans, _table_of_plans),
    "testbed": Experiment(testbed.testbed, testbed.table),
    "plain": Experiment(testbed.plain, testbed.table),
}


if __name__ == "__main__":
    simulated.main("sip", EXPERIMENTS, __doc__.splitlines()[0])
