"""The local proxy in a lab: trees of every shape, against workers that talk to the server.

    python -m benchmarks.proxy [--quick] [--tree SHAPE] [--json FILE] [--strict]
    python -m benchmarks.proxy --only settings [--setting NAME] [--json FILE] [--strict]
    python -m benchmarks.proxy --only racks [--tree SHAPE] [--json FILE] [--strict]
    python -m benchmarks.proxy --only one-worker [--json FILE] [--strict]
    python -m benchmarks.proxy --only failures|inner [--lab [--hosts N]] [--times N] [--seed N]
    python -m benchmarks.proxy --only training [--lab]
    python -m benchmarks.proxy --only priorities|priorities-ps [--quick] [--json FILE] [--strict]
    python -m benchmarks.proxy --only receiver [--quick] [--json FILE]
    python -m benchmarks.proxy --only jobs [--json FILE] [--strict]

Four hosts with four workers each and a host with the server, one NIC each, 1 Gbit/s. Every worker
pushes and pulls 40 MB by one push_pull per step; results are verified. The bound is the time of one
model each way at once on one NIC. The exit code is 1 when a result is wrong, or with --strict when
a bar is missed.

With --only settings: what --tree auto takes, against the best of all shapes, for several sizes,
rates and networks. With --only racks: 32 hosts and four servers in four racks, whose uplinks have a
quarter of the rates of their hosts. Both are in benchmarks/proxy/shapes.py. With --only one-worker:
one worker and one server, by a proxy and without; see benchmarks/proxy/one_worker.py.

With --only failures: two to four proxies on this host that are killed, stopped and started again N
times, at random moments; see benchmarks/proxy/failures.py. With --only inner: proxies that have
others below them are killed or stopped; "moved" is when the last one of these, and of its workers,
had another way. With --lab: proxies and one or two servers on hosts of two racks, ten in all, or as
many as --hosts says. The exit code is 1 when a sum is wrong or a run hangs; the same seed repeats
the events, though not their timing.

With --only training: the demo's LeNet-5, directly, by proxies, and with a proxy that is killed in
the middle, on this host or with --lab on four; see benchmarks/proxy/training.py. The exit code is 1
when one of them has not learnt.

With --only priorities: a job beside others on the hosts of a lab, and priorities-ps: the same with
jobs that use parameter servers by proxies; see benchmarks/proxy/priorities.py. With --only
receiver: jobs of two hosts that send to one; see benchmarks/proxy/one_receiver.py. With --only
jobs: twenty, simulated; see benchmarks/proxy/many_jobs.py.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.proxy import (
    failures,
    many_jobs,
    one_receiver,
    one_worker,
    priorities,
    shapes,
    training,
)
from benchmarks.proxy.failing_cluster import RunError
from benchmarks.row import Row, conclude
from dmlcomm.ps import tree

# Of the job of the first priority.
STEPS = 20
QUICK_STEPS = 6

TREES = "trees"  # without --only


def main() -> None:
    options = _parse()
    if options.only in EXPERIMENTS:
        title, rows = EXPERIMENTS[options.only]
        conclude(title, list(rows(options)), options.json, options.strict)
        return
    try:
        print(_report(options))
    except RunError as error:
        raise SystemExit(str(error)) from error


def _trees(options: argparse.Namespace) -> Iterable[Row]:
    load = replace(shapes.FOUR_HOSTS, repeats=1) if options.quick else shapes.FOUR_HOSTS
    chosen = options.tree or (["flat"] if options.quick else tree.SHAPES)
    case = "40 MB, 16 workers on 4 hosts"
    return shapes.rows_beside_direct(load, chosen, shapes.LEAST_SPEEDUP, case)


def _racks(options: argparse.Namespace) -> Iterable[Row]:
    chosen = options.tree or shapes.RACKS_SHAPES
    case = "16 MB, 32 hosts, 4 servers, racks 1:4"
    return shapes.rows_beside_direct(shapes.RACKS, chosen, shapes.RACKS_LEAST_SPEEDUP, case)


def _steps(options: argparse.Namespace) -> int:
    return QUICK_STEPS if options.quick else STEPS


# By --only, the title and the rows.
EXPERIMENTS: Mapping[str, tuple[str, Callable[[argparse.Namespace], Iterable[Row]]]] = {
    TREES: ("Times in ms; the bound is one model over one NIC.", _trees),
    "settings": (
        "Times in ms; the bound is the best of all shapes.",
        lambda options: shapes.rows_of_settings(options.setting or list(shapes.SETTINGS)),
    ),
    "racks": ("Times in ms; the bound is one part of the model over one NIC.", _racks),
    "one-worker": (
        "Times in ms; the bound is the time without a proxy.",
        lambda options: one_worker.rows(),
    ),
    "priorities": (
        "Times of steps in ms; the bound is the job's time alone.",
        lambda options: priorities.rows(_steps(options)),
    ),
    "priorities-ps": (
        "Times of steps in ms; the bound is the job's time alone.",
        lambda options: priorities.rows(_steps(options), by_servers=True),
    ),
    "receiver": (
        "Times of steps in ms; the bound is the job's time alone.",
        lambda options: one_receiver.rows(_steps(options)),
    ),
    "jobs": (
        "Times in ms; the bound is the time without the arbiter.",
        lambda options: many_jobs.rows(),
    ),
}


def _report(options: argparse.Namespace) -> str:
    if options.only == "training":
        return training.report(training.run(options.lab))
    is_inner = options.only == "inner"
    lab_hosts = options.hosts if options.lab else 0
    return failures.report(failures.run(options.times, options.seed, is_inner, lab_hosts))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proxy", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="one shape, one step each")
    parser.add_argument(
        "--tree", action="append", choices=[tree.AUTO, *tree.SHAPES], help="these shapes alone"
    )
    parser.add_argument(
        "--setting", action="append", choices=list(shapes.SETTINGS), help="these settings alone"
    )
    parser.add_argument("--json", type=Path, help="file for JSON lines")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument(
        "--only",
        choices=[*EXPERIMENTS, "failures", "inner", "training"],
        default=TREES,
        help="instead of the trees; inner: failures of proxies that have others below them",
    )
    parser.add_argument(
        "--lab", action="store_true", help="failures, training: on hosts of two racks"
    )
    parser.add_argument(
        "--hosts", type=int, default=10, help="of failures in the lab, with those of servers; even"
    )
    parser.add_argument("--times", type=int, default=50, help="failures")
    parser.add_argument("--seed", type=int, default=0, help="of the failures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
