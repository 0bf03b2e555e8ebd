"""The local proxy in a lab: trees of every shape, against workers that talk to the server.

    python -m benchmarks.proxy [--quick] [--tree SHAPE] [--json FILE] [--strict]
    python -m benchmarks.proxy --only failures|inner [--times N] [--seed N]
    python -m benchmarks.proxy --only training
    python -m benchmarks.proxy --only priorities [--quick] [--json FILE] [--strict]
    python -m benchmarks.proxy --only receiver [--quick] [--json FILE]
    python -m benchmarks.proxy --only jobs [--json FILE] [--strict]

Four hosts with four workers each and a host with the server, one NIC each, 1 Gbit/s. Every worker
pushes and pulls 40 MB by one push_pull per step; results are verified. The bound is the time of one
model each way at once on one NIC. The exit code is 1 when a result is wrong, or with --strict when
a bar is missed.

With --only failures: proxies on this host that are killed, stopped and started again N times, at
random moments; see benchmarks/proxy/failures.py. The exit code is 1 when a sum is wrong or a run
hangs; the same seed repeats the events, though not their timing.

With --only training: the demo's LeNet-5, directly, by proxies, and with a proxy that is killed in
the middle; see benchmarks/proxy/training.py. The exit code is 1 when one of them has not learnt.

With --only priorities: a job beside others on the hosts of a lab; see
benchmarks/proxy/priorities.py. With --only receiver: jobs of two hosts that send to one; see
benchmarks/proxy/one_receiver.py. With --only jobs: twenty, simulated; see
benchmarks/proxy/many_jobs.py.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.proxy import failures, many_jobs, one_receiver, priorities, training
from benchmarks.proxy.cluster import Cluster, Load
from benchmarks.proxy.local_cluster import RunError
from benchmarks.row import Row, conclude
from dmlcomm.ps import tree

NUM_BYTES = 40_000_000
RATE = "1gbit"
RATE_BPS = 1e9
LEAST_SPEEDUP = 3.0
# Of the job of the first priority.
STEPS = 20
QUICK_STEPS = 6


def main() -> None:
    options = _parse()
    if options.only == "priorities":
        rows = priorities.rows(QUICK_STEPS if options.quick else STEPS)
        title = "Times of steps in ms; the bound is the job's time alone."
        conclude(title, rows, options.json, options.strict)
        return
    if options.only == "receiver":
        rows = one_receiver.rows(QUICK_STEPS if options.quick else STEPS)
        title = "Times of steps in ms; the bound is the job's time alone."
        conclude(title, rows, options.json, options.strict)
        return
    if options.only == "jobs":
        title = "Times in ms; the bound is the time without the arbiter."
        conclude(title, list(many_jobs.rows()), options.json, options.strict)
        return
    if options.only:
        try:
            print(_report(options))
        except RunError as error:
            raise SystemExit(str(error)) from error
        return
    load = Load(4, 4, NUM_BYTES, RATE, 1 if options.quick else 3)
    shapes = options.tree or (["flat"] if options.quick else tree.SHAPES)
    rows = []
    with Cluster(load) as cluster:
        direct, direct_bytes = cluster.run(None)
        for shape in shapes:
            times, num_bytes = cluster.run(shape)
            rows.append(
                Row(
                    experiment="push_pull by proxies",
                    case=f"40 MB, 16 workers on 4 hosts, {shape}",
                    seconds=statistics.median(times.both_s),
                    bound_s=NUM_BYTES * 8 / RATE_BPS,
                    peer="direct",
                    peer_s=statistics.median(direct.both_s),
                    least_speedup=LEAST_SPEEDUP,
                    wrong=times.wrong + direct.wrong,
                    remark=f"{num_bytes / 1e6:.0f} MB per step into the server, "
                    f"{direct_bytes / 1e6:.0f} MB direct",
                )
            )
    title = "Times in ms; the bound is one model over one NIC."
    conclude(title, rows, options.json, options.strict)


def _report(options: argparse.Namespace) -> str:
    if options.only == "training":
        return training.report(training.run())
    run = failures.run_inner if options.only == "inner" else failures.run
    return failures.report(run(options.times, options.seed))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proxy", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="one shape, one step each")
    parser.add_argument(
        "--tree", action="append", choices=[tree.AUTO, *tree.SHAPES], help="these shapes alone"
    )
    parser.add_argument("--json", type=Path, help="file for JSON lines")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument(
        "--only",
        choices=["failures", "inner", "training", "priorities", "receiver", "jobs"],
        help="instead of the lab; inner: SIGKILL of proxies that have others below them",
    )
    parser.add_argument("--times", type=int, default=50, help="failures")
    parser.add_argument("--seed", type=int, default=0, help="of the failures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
