"""all_reduce between emulated hosts, beside gloo and beside the bound of the network.

    python -m benchmarks.lab --topology flat:9,1 --rate 200mbit --megabytes 1,12.5,100

Builds a lab (see docs/lab.md), runs both backends in the same processes, in turns, and judges:
dmlcomm at most 1.05 x the bound and not slower than gloo; gloo, from 12.5 MB on and where hosts
have one NIC, within 8 % of the bound. The exit code is 1 when a result is wrong, or with --strict
when a bar is missed.

The bound is 2(H - 1)/H x S / (sum of the rates of a host's NICs) for H hosts: every host sends
that many bytes, and no NIC is faster than its rate. Rates count whole frames: the headers of TCP,
IP and Ethernet cost 4.6 % at MTU 1500 and 0.7 % at 9000.
"""

import argparse
from pathlib import Path

from rich.table import Table

from benchmarks import report
from benchmarks.arguments import list_of
from benchmarks.lab_run import Request, run
from dmlcomm.lab import Options

REFERENCE = "dmlcomm"
PEER = "gloo"
# Most of the bound. gloo's says whether the lab is exact, where gloo uses every NIC of a host.
MOST_OF_BOUND = 1.05
PEER_MOST_OF_BOUND = 1.08
PEER_LEAST_SIZE = 12_000_000


def main() -> None:
    options = _parse()
    results = run(_request(options))
    report.console.print(table(results))
    missed = judge(results)
    for line in missed:
        report.console.print(f"missed: {line}")
    if options.json:
        options.json.unlink(missing_ok=True)
        report.append_json_lines(options.json, [report.environment(), *results])
    if any(result["wrong"] for result in results) or (options.strict and missed):
        raise SystemExit(1)


def table(results: list[dict]) -> Table:
    """One row per result."""
    found = Table()
    columns = ("size", "backend", "bound", "time", "time / bound", "gloo / time", "least")
    for column in (*columns, "greatest", "#wrong"):
        found.add_column(column, justify="left" if column == "backend" else "right")
    for result in results:
        peer = _peer_of(result, results)
        found.add_row(
            f"{result['size'] / 1e6:.4g} MB",
            result["backend"],
            *(f"{result[name] * 1000:.1f} ms" for name in ("bound_s", "seconds")),
            f"{result['ratio']:.3f}",
            f"{peer['seconds'] / result['seconds']:.2f}" if peer else "-",
            *(f"{result[name] * 1000:.1f} ms" for name in ("least_s", "greatest_s")),
            str(result["wrong"]),
        )
    return found


def judge(results: list[dict]) -> list[str]:
    """The bars that are missed."""
    missed = []
    for result in results:
        what = f"{result['backend']}, {result['size'] / 1e6:.4g} MB"
        most = _most_of_bound(result)
        if most and result["ratio"] > most:
            missed.append(f"{what}: {result['ratio']:.3f} x the bound, at most {most}")
        peer = _peer_of(result, results)
        if result["backend"] == REFERENCE and peer and result["seconds"] > peer["seconds"]:
            ratio = result["seconds"] / peer["seconds"]
            missed.append(f"{what}: {ratio:.3f} x gloo's time, at most 1")
    return missed


def _most_of_bound(result: dict) -> float | None:
    if result["backend"] == REFERENCE:
        return MOST_OF_BOUND
    judged = result["backend"] == PEER and result["nics"] == 1
    return PEER_MOST_OF_BOUND if judged and result["size"] >= PEER_LEAST_SIZE else None


def _peer_of(result: dict, results: list[dict]) -> dict | None:
    """gloo's result of the same size; None for itself, and where it was not measured."""
    for other in results:
        if other["backend"] == PEER and other["size"] == result["size"] and other is not result:
            return other
    return None


def _request(options: argparse.Namespace) -> Request:
    return Request(
        topology=options.topology,
        rate=options.rate,
        sizes=tuple(round(megabytes * 1e6) for megabytes in options.megabytes),
        backends=tuple(options.backends.split(",")),
        mtu=options.mtu,
        gloo_nics=options.gloo_nics,
        seconds=options.seconds,
        env=tuple(options.env),
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="flat:9,1")
    parser.add_argument(
        "--rate", default="200mbit", help="of every link, or a comma list: one per level"
    )
    parser.add_argument("--mtu", type=int, default=Options().mtu)
    parser.add_argument("--backends", default=f"{REFERENCE},{PEER}")
    parser.add_argument(
        "--gloo-nics", type=int, default=1, help="how many NICs gloo is given; 0: all"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="per size and backend, about")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for the ranks")
    parser.add_argument("--json", type=Path, help="file for JSON lines")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument(
        "--megabytes",
        type=list_of(float),
        default=[1.0, 12.5, 100.0],
        help="sizes of a rank's tensor, a comma list",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
