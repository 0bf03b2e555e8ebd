"""``python -m benchmarks.start``: how long many ranks take to form a group, and what it costs.

Every rank is a process of this host that has loaded everything and is connected to the store. All
begin together. See docs/numbers.md, "Start".
"""

import argparse
import statistics
from dataclasses import dataclass

from rich.table import Table

from benchmarks.arguments import comma_list
from benchmarks.report import console
from benchmarks.start_ranks import Span, Start, measure

BACKENDS = ("dmlcomm", "gloo")


@dataclass(frozen=True)
class Row:
    """Starts with one backend; times are medians over the starts."""

    start_s: float
    barrier_s: float
    all_reduce_s: float
    open_files: tuple[int, int]
    num_calls: int
    num_checks: int

    @classmethod
    def of(cls, starts: list[list[Start]]) -> "Row":
        ranks = [rank for start in starts for rank in start]
        return cls(
            _median_s([[rank.start for rank in start] for start in starts]),
            _median_s([[rank.barrier for rank in start] for start in starts]),
            _median_s([[rank.all_reduce for rank in start] for start in starts]),
            (max(r.open_files[0] for r in ranks), max(r.open_files[1] for r in ranks)),
            max(r.calls.total() - r.calls["check"] for r in ranks),
            max(r.calls["check"] for r in ranks),
        )


def _median_s(starts: list[list[Span]]) -> float:
    """From the first rank that begins to the last one that is done."""
    return statistics.median(
        max(span.end for span in spans) - min(span.begin for span in spans) for spans in starts
    )


def _table() -> Table:
    table = Table(title="Start: times in ms", title_justify="left")
    names = ("ranks", "backend", "start", "barrier", "all_reduce", "open files", "store calls")
    for name in (*names, "checks", "gloo / start"):
        table.add_column(name, justify="left" if name == "backend" else "right", no_wrap=True)
    return table


def _add(table: Table, num_ranks: int, rows: dict[str, Row]) -> None:
    for backend, row in rows.items():
        times = (row.start_s, row.barrier_s, row.all_reduce_s)
        ratio = f"{rows['gloo'].start_s / row.start_s:.2f}x" if "gloo" in rows else "-"
        table.add_row(
            str(num_ranks),
            backend,
            *(f"{seconds * 1e3:.0f}" for seconds in times),
            "{} -> {}".format(*row.open_files),
            str(row.num_calls),
            str(row.num_checks),
            ratio,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--ranks", default="8,16,32,64", help="comma list of numbers of ranks")
    parser.add_argument(
        "--backends", type=comma_list(BACKENDS, "backend"), default=list(BACKENDS), metavar="NAMES"
    )
    parser.add_argument("--rounds", type=int, default=3, help="starts of each, in turns")
    arguments = parser.parse_args()
    table = _table()
    for num_ranks in map(int, arguments.ranks.split(",")):
        starts: dict[str, list[list[Start]]] = {backend: [] for backend in arguments.backends}
        for _ in range(arguments.rounds):
            for backend in arguments.backends:
                starts[backend].append(measure(backend, num_ranks))
        _add(table, num_ranks, {backend: Row.of(each) for backend, each in starts.items()})
    console.print(table)


if __name__ == "__main__":
    main()
