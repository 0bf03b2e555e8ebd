"""all_reduce between emulated hosts, beside gloo and beside the bound of the network.

    python -m benchmarks.lab --topology flat:9,1 --rate 200mbit --megabytes 1,12.5,100

Builds a lab (see docs/lab.md), runs both backends in the same processes, in turns, and judges:
dmlcomm at most 1.05 x the bound and not slower than gloo; gloo, from 12.5 MB on, within 8 % of the
bound. The exit code is 1 when a result is wrong, or with --strict when a bar is missed.

The bound is 2(N - 1)/N x S / rate: every NIC sends that many bytes, and nothing is faster than its
rate. That counts whole frames: at MTU 1500 the headers of TCP, IP and Ethernet alone cost 4.6 %.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.table import Table

from benchmarks import report
from benchmarks.operations import OPERATIONS
from dmlcomm.lab import Lab, Options
from dmlcomm.lab import graph as topology
from dmlcomm.lab.units import parse_rate

REFERENCE = "dmlcomm"
# Backend -> most of the bound, from which size on.
MOST_OF_BOUND = {REFERENCE: (1.05, 0), "gloo": (1.08, 12_000_000)}
DEADLINE_S = 1800


def main() -> None:
    options = _parse()
    results = run(options)
    report.console.print(table(results))
    missed = judge(results)
    for line in missed:
        report.console.print(f"missed: {line}")
    if options.json:
        options.json.unlink(missing_ok=True)
        report.append_json_lines(options.json, [report.environment(), *results])
    if any(result["wrong"] for result in results) or (options.strict and missed):
        raise SystemExit(1)


def run(options: argparse.Namespace) -> list[dict]:
    """One dictionary per size and backend, with ``bound_s`` and ``ratio`` to it."""
    rate_bps = parse_rate(options.rate.split(",")[0])
    if rate_bps is None:
        raise SystemExit("a bound needs a rate: --rate 200mbit")
    sizes = [round(megabytes * 1e6) for megabytes in options.megabytes]
    with Lab(options.topology, rate=options.rate, options=Options(mtu=options.mtu)) as lab:
        num_ranks = len(topology.hosts(lab.graph()))
        factor = OPERATIONS["all_reduce"].wire_factor(num_ranks)
        bounds_s = [size * factor * 8 / rate_bps for size in sizes]
        output = _output(lab, options, sizes, bounds_s)
    results = [json.loads(line[line.index("{") :]) for line in output]
    for result in results:
        bound_s = result["size"] * factor * 8 / rate_bps
        result |= {"topology": options.topology, "rate_bps": rate_bps, "mtu": options.mtu}
        result |= {"ranks": num_ranks, "bound_s": bound_s, "ratio": result["seconds"] / bound_s}
        result["env"] = options.env
    return results


def _output(
    lab: Lab, options: argparse.Namespace, sizes: list[int], bounds_s: list[float]
) -> list[str]:
    """What rank 0 prints: a JSON line per result."""
    command = [sys.executable, "-m", "benchmarks.lab_rank", options.backends]
    command += [",".join(map(str, sizes)), str(options.seconds), ",".join(map(str, bounds_s))]
    variables = [word for assignment in options.env for word in ("-e", assignment)]
    completed = lab.run(command, *variables, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    if completed.returncode != 0:
        raise SystemExit(f"the ranks failed with exit code {completed.returncode}")
    return completed.stdout.splitlines()


def table(results: list[dict]) -> Table:
    """One row per result."""
    found = Table("size", "backend", "bound", "time", "time / bound", "least", "greatest", "#wrong")
    for result in results:
        found.add_row(
            f"{result['size'] / 1e6:.4g} MB",
            result["backend"],
            *(f"{result[name] * 1000:.1f} ms" for name in ("bound_s", "seconds")),
            f"{result['ratio']:.3f}",
            *(f"{result[name] * 1000:.1f} ms" for name in ("least_s", "greatest_s")),
            str(result["wrong"]),
        )
    return found


def judge(results: list[dict]) -> list[str]:
    """The bars that are missed."""
    by_case = {(result["size"], result["backend"]): result for result in results}
    missed = []
    for (size, backend), result in by_case.items():
        what = f"{backend}, {size / 1e6:.4g} MB"
        most, least_size = MOST_OF_BOUND.get(backend, (float("inf"), 0))
        if size >= least_size and result["ratio"] > most:
            missed.append(f"{what}: {result['ratio']:.3f} x the bound, at most {most}")
        peer = by_case.get((size, "gloo"))
        if backend == REFERENCE and peer and result["seconds"] > peer["seconds"]:
            ratio = result["seconds"] / peer["seconds"]
            missed.append(f"{what}: {ratio:.3f} x gloo's time, at most 1")
    return missed


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="flat:9,1")
    parser.add_argument("--rate", default="200mbit", help="of every link")
    parser.add_argument("--mtu", type=int, default=Options().mtu)
    parser.add_argument("--backends", default="dmlcomm,gloo")
    parser.add_argument("--seconds", type=float, default=6.0, help="per size and backend, about")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for the ranks")
    parser.add_argument("--json", type=Path, help="file for JSON lines")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument(
        "--megabytes",
        type=lambda text: [float(item) for item in text.split(",")],
        default=[1.0, 12.5, 100.0],
        help="sizes of a rank's tensor, a comma list",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
