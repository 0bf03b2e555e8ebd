"""Repeats MLNET's simulation with ``dmlcomm simulate``'s simulator.

    python -m benchmarks.reproduce_mlnet --folder docs --page docs/reproduction-mlnet.md
    python -m benchmarks.reproduce_mlnet --folder docs --draw   # a picture of what was simulated

Writes reproduction-mlnet.json (JSON lines) to the folder and the tables to the page, and prints
them. What --only leaves out keeps the records that the file has.
"""

import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import simulated
from benchmarks.reproduce_mlnet import scenarios
from benchmarks.reproduce_mlnet.scenarios import TREES
from benchmarks.simulated import Experiment, Record
from dmlcomm.simulate.run import Player, Result
from dmlcomm.simulate.scenario import Scenario

SERVERS = (50, 100, 200, 300, 400)
# Each draws hosts, trees and the ways of connections. Where SEVERAL_DRAWS does not say all, the
# first.
SEEDS = (1, 2, 3)
SEVERAL_DRAWS = (50, 400)  # servers
# The paper's makespans in parts of BASELINE's, by servers, over-subscription and tree. It says
# "worse than BASELINE" of 300 and more, without over-subscription.
WORSE = "> 100%"
PAPER = {
    (50, 1, "BINARY"): "22%",
    (50, 1, "RACK"): "42%",
    **{(servers, 1, tree): WORSE for servers in (300, 400) for tree in ("BINARY", "RACK")},
    (50, 4, "BINARY"): "34%",
    (50, 4, "RACK"): "27%",
    (400, 4, "BINARY"): "60%",
    (400, 4, "RACK"): "29%",
}
# Changes of the makespan's median, and of its tail or 95th percentile.
PAPER_OF_JOBS = {
    "BASELINE, priorities": "-25 % (tail +2 %)",
    "RACK, priorities": "-60 % (95th percentile -54 %), against RACK -13.9 %",
}


def makespans() -> Iterator[Record]:
    """Figure 1: one job, by the number of servers."""
    for over_subscription in (1, 4):
        for servers in SERVERS:
            for seed in SEEDS if servers in SEVERAL_DRAWS else SEEDS[:1]:
                for name in TREES:
                    yield _point(servers, over_subscription, name, "random", seed)


def shared() -> Iterator[Record]:
    """As `makespans`, if workers are drawn one by one, so that some share a host."""
    for over_subscription in (1, 4):
        for seed in SEEDS:
            for name in TREES:
                yield _point(50, over_subscription, name, "random", seed, is_shared=True)


def orders() -> Iterator[Record]:
    """What the makespan of trees depends on: which workers are at the top of them."""
    for over_subscription in (1, 4):
        yield _point(50, over_subscription, "BASELINE", "rotated")
        for tree in ("binary", "rack", "flat_rack"):
            for order in ("rotated", "random", "same"):
                yield _point(50, over_subscription, tree, order)


def links() -> Iterator[Record]:
    """Figure 2: what links carry; also with a binary tree in each rack, whose root pushes."""
    for name, tree in (TREES | {"binary in racks": "binary_rack"}).items():
        result, _ = _play(scenarios.one_job(200, 1, tree, "random"))
        carried = [one.num_bytes for one in [*result.links, *result.trunks]]
        yield {
            "tree": name,
            "num_links": len(carried),
            "mean_bytes": statistics.mean(carried),
            "percentiles_bytes": statistics.quantiles(carried, n=100),
        }


def jobs() -> Iterator[Record]:
    """Figure 3: twenty jobs at once."""
    for has_priorities in (False, True):
        for name, tree in TREES.items():
            result, seconds = _play(scenarios.many_jobs(tree, "random", has_priorities))
            times = sorted(job.seconds for job in result.jobs)
            yield {
                "case": name + (", priorities" if has_priorities else ""),
                "median_s": statistics.median(times),
                "p95_s": statistics.quantiles(times, n=20, method="inclusive")[-1],
                "longest_s": times[-1],
                "cpu_s": seconds,
            }


def _point(
    servers: int,
    over_subscription: int,
    name: str,
    order: str,
    seed: int = SEEDS[0],
    is_shared: bool = False,
) -> Record:
    tree = TREES.get(name, name)
    scenario = scenarios.one_job(servers, over_subscription, tree, order, seed, is_shared)
    result, seconds = _play(scenario, seed)
    return {
        "servers": servers,
        "over_subscription": over_subscription,
        "tree": name,
        "order": order,
        "seed": seed,
        "makespan_s": result.makespan_s,
        "cpu_s": seconds,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _play(scenario: Scenario, seed: int = SEEDS[0]) -> tuple[Result, float]:
    """And the seconds of a core that it took."""
    began = time.process_time()
    result = Player(scenario, seed).run()
    return result, time.process_time() - began


def _table_of_makespans(records: list[Record]) -> Iterator[list[str]]:
    yield ["servers", "over-subscription", *TREES, "BINARY, paper", "RACK, paper", "simulated in"]
    for key in dict.fromkeys((r["servers"], r["over_subscription"]) for r in records):
        draws: dict[str, list[Record]] = {name: [] for name in TREES}  # by seed
        for record in records:
            if (record["servers"], record["over_subscription"]) == key:
                draws[record["tree"]].append(record)
        makespans = {name: [draw["makespan_s"] for draw in draws[name]] for name in TREES}
        base = makespans.pop("BASELINE")
        papers = [PAPER.get((*key, name), "-") for name in makespans]
        yield [
            str(key[0]),
            "no" if key[1] == 1 else f"1:{key[1]}",
            _spread(base, 1, " s"),
            *(_spread(_parts(of_tree, base), 100, "%") for of_tree in makespans.values()),
            *papers,
            ", ".join(f"{statistics.median(d['cpu_s'] for d in draws[n]):.0f}" for n in TREES)
            + " s",
        ]


def _parts(some: Sequence[float], base: Sequence[float]) -> list[float]:
    """Draw by draw."""
    return [one / other for one, other in zip(some, base, strict=True)]


def _spread(values: Sequence[float], factor: float, unit: str) -> str:
    """Their median; of several, also the least and the most."""
    some = min(values), statistics.median(values), max(values)
    least, median, most = (f"{factor * value:.0f}" for value in some)
    return median + unit + (f" ({least} to {most})" if len(values) > 1 else "")


def _table_of_orders(records: list[Record]) -> Iterator[list[str]]:
    yield ["over-subscription", "tree", "rotated", "random", "same"]
    bases = {r["over_subscription"]: r for r in records if r["tree"] == "BASELINE"}
    for over_subscription, base in bases.items():
        for tree in ("binary", "rack", "flat_rack"):
            found = {
                r["order"]: r["makespan_s"]
                for r in records
                if (r["over_subscription"], r["tree"]) == (over_subscription, tree)
            }
            cells = [
                f"{found[order] / base['makespan_s']:.0%}"
                for order in ("rotated", "random", "same")
            ]
            yield ["no" if over_subscription == 1 else f"1:{over_subscription}", tree, *cells]


def _table_of_links(records: list[Record]) -> Iterator[list[str]]:
    some = (25, 50, 75, 90, 99)
    yield ["tree", "mean", *(f"{percent} % of links carry up to" for percent in some)]
    for record in records:
        percentiles = [record["percentiles_bytes"][percent - 1] for percent in some]
        cells = [record["mean_bytes"], *percentiles]
        yield [record["tree"], *(f"{num_bytes / 1e9:.0f} GB" for num_bytes in cells)]


def _draw_links(records: list[Record], path: Path) -> None:
    """The paper's figure 2. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    for record in records:
        terabytes = [num_bytes / 1e12 for num_bytes in record["percentiles_bytes"]]
        (line,) = axes.plot(terabytes, range(1, 100), label=record["tree"])
        axes.axvline(record["mean_bytes"] / 1e12, color=line.get_color(), linestyle=":")
    axes.set_xlabel("TB that a link carries; dotted: the mean of all links")
    axes.set_ylabel("% of links carry less")
    axes.set_xlim(0)
    axes.set_ylim(0, 100)
    axes.legend(frameon=False)
    figure.savefig(path, format="png", metadata={"Software": None})


def _table_of_jobs(records: list[Record]) -> Iterator[list[str]]:
    yield ["20 jobs", "median", "95th percentile", "longest", "against BASELINE", "paper"]
    base = records[0]
    alone = {record["case"]: record["median_s"] for record in records}
    for record in records:
        change = [f"{record[key] / base[key] - 1:+.0%}" for key in ("median_s", "p95_s")]
        tree, _, has_priorities = record["case"].partition(", ")
        beside = ""
        if has_priorities and tree != base["case"]:
            beside = f", against {tree} {record['median_s'] / alone[tree] - 1:+.0%}"
        yield [
            record["case"],
            *(f"{record[key]:.0f} s" for key in ("median_s", "p95_s", "longest_s")),
            f"{change[0]} (95th percentile {change[1]}){beside}",
            PAPER_OF_JOBS.get(record["case"], "-"),
        ]


EXPERIMENTS = {
    "makespans": Experiment(makespans, _table_of_makespans),
    "shared": Experiment(shared, _table_of_makespans),
    "orders": Experiment(orders, _table_of_orders),
    "links": Experiment(links, _table_of_links, _draw_links),
    "jobs": Experiment(jobs, _table_of_jobs),
}


if __name__ == "__main__":
    simulated.main("mlnet", EXPERIMENTS, __doc__.splitlines()[0])
