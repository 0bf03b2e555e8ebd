"""Times collectives side by side, in the columns of nccl-tests.

    python -m benchmarks.collectives -o all_reduce -b 1K -e 64M -f 4 --ranks 4

``docs/numbers.md`` says what every number means and how it is measured.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks import openmpi, report
from benchmarks.arguments import list_of
from benchmarks.engine import OPENMPI, Measurement, Session, Settings, session, sizes
from benchmarks.operations import OPERATIONS

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")


def main() -> None:
    options = _parse()
    if OPENMPI in options.backends and (reason := openmpi.why_not()):
        report.console.print(f"[yellow]openmpi is left out: {reason}[/]")
    if options.json:
        options.json.unlink(missing_ok=True)
        report.append_json_lines(options.json, [report.environment()])
    measurements = []
    for num_ranks in options.ranks:
        with session(_settings(options, num_ranks)) as running:
            measurements += run(running, options.op, list(_sizes(options)), options.json)
    report.console.print()
    report.console.print(report.ratios(measurements, reference=options.backends[0]))
    if any(m.wrong for m in measurements):
        raise SystemExit("wrong results: see the column #wrong")


def run(
    running: Session, operations: Iterable[str], sizes_bytes: list[int], json_file: Path | None
) -> list[Measurement]:
    """Measures operations x sizes, printing every line as it comes."""
    measurements = []
    for operation in operations:
        settings = running.settings
        report.console.print(
            f"\n# {operation}, {settings.num_ranks} ranks, transport {settings.transport}\n"
            f"#{report.HEADER[1:]}\n#{report.UNITS[1:]}"
        )
        for size in sizes_bytes:
            for measurement in running.measure(operation, size):
                report.console.print(report.line(measurement))
                measurements.append(measurement)
                if json_file:
                    report.append_json_lines(json_file, [measurement.as_dict()])
    return measurements


def _settings(options: argparse.Namespace, num_ranks: int) -> Settings:
    return Settings(
        num_ranks=num_ranks,
        backends=tuple(options.backends),
        dtype=getattr(torch, options.dtype),
        transport=options.transport,
        congestion=options.congestion,
        iterations=options.iters,
        warmup=options.warmup,
        rounds=options.rounds,
        seconds=options.seconds,
        check=options.check,
    )


def _sizes(options: argparse.Namespace) -> Iterable[int]:
    return sizes(options.minbytes, options.maxbytes, options.stepfactor)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collectives",
        description="Times collectives side by side, in the columns of nccl-tests.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "-o",
        "--op",
        nargs="+",
        choices=OPERATIONS,
        default=["all_reduce"],
        metavar="OP",
        help=f"operations: {', '.join(OPERATIONS)}",
    )
    add("-b", "--minbytes", type=report.parse_bytes, default="1K", help="smallest size")
    add("-e", "--maxbytes", type=report.parse_bytes, default="64M", help="largest size")
    add("-f", "--stepfactor", type=int, default=4, help="each size is this many times the last")
    add("-n", "--iters", type=int, default=100, help="most iterations in a turn")
    add("-w", "--warmup", type=int, default=3, help="iterations before a turn")
    add("--rounds", type=int, default=2, help="turns of each backend per size")
    add("--seconds", type=float, default=0.5, help="length of a turn")
    add("--ranks", "--world", type=list_of(int), default="2", help="numbers of ranks, 2,4")
    add(
        "--backends",
        "--backend",
        type=list_of(str),
        default=f"dmlcomm,gloo,{OPENMPI}",
        help="comma list; ratios refer to the first",
    )
    add("--dtype", choices=DTYPES, default="float32", help="element type")
    transports = ("auto", "tcp", "ucx")
    add("--transport", choices=transports, default="auto", help="auto: shared memory")
    add("--congestion", help="make this the system's TCP congestion control for the run (root)")
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="verify results")
    add("--json", type=Path, help="write JSON lines to this file")
    options = parser.parse_args()
    if options.stepfactor < 2:
        parser.error("-f must be at least 2")
    return options


if __name__ == "__main__":
    main()
