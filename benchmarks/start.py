"""``python -m benchmarks.start``: how long it takes many ranks to form a group and to use it.

Every rank is a process that has loaded everything and is connected to the store: first all of them
on this host, then one on every host of a lab. All begin together, and run every collective. The
exit code is 1 when a result is wrong. See docs/numbers.md, "Start".
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rich.table import Table

from benchmarks.arguments import comma_list
from benchmarks.report import console
from benchmarks.start_ranks import Span, Start, measure, measure_in_lab
from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology

BACKENDS = ("dmlcomm", "gloo")
RANKS = "8,16,32,64,128,256"
LABS = ("flat:64,2", "bcube:8,2")


@dataclass(frozen=True)
class Row:
    """Starts with one backend; times are medians over the starts, the rest is of the worst rank.

    Attributes:
        collectives_s: of all of them, one after the other.
        open_files: after the start, and after every collective.
        num_calls: of the store; looks of ranks that wait do not count.
    """

    start_s: float
    barrier_s: float
    all_reduce_s: float
    collectives_s: float
    open_files: tuple[int, int]
    num_calls: int
    wrong: int

    @classmethod
    def of(cls, starts: list[list[Start]]) -> "Row":
        ranks = [rank for start in starts for rank in start]
        return cls(
            _median_s([[rank.start for rank in start] for start in starts]),
            _median_s([[rank.barrier for rank in start] for start in starts]),
            _median_s([[rank.all_reduce for rank in start] for start in starts]),
            statistics.median(map(_all_collectives_s, starts)),
            (max(r.open_files[0] for r in ranks), max(r.open_files[-1] for r in ranks)),
            max(r.calls.total() - r.calls["check"] for r in ranks),
            sum(rank.wrong for rank in ranks),
        )

    @property
    def connected_s(self) -> float:
        """Of what one backend does at the start, and another one at the first operation."""
        return self.start_s + self.barrier_s


def _all_collectives_s(start: list[Start]) -> float:
    return sum(map(_seconds, zip(*(rank.collectives for rank in start), strict=True)))


def _seconds(spans: tuple[Span, ...] | list[Span]) -> float:
    """From the first rank that begins to the last one that is done."""
    return max(span.end for span in spans) - min(span.begin for span in spans)


def _median_s(starts: list[list[Span]]) -> float:
    return statistics.median(map(_seconds, starts))


def _table(title: str) -> Table:
    table = Table(title=f"{title}: times in ms", title_justify="left")
    for name in (
        *("ranks", "backend", "start", "both", "all_reduce", "collectives", "open files", "calls"),
        *("wrong", "gloo/start", "gloo/both"),
    ):
        table.add_column(name, justify="left" if name == "backend" else "right", no_wrap=True)
    return table


def _add(table: Table, num_ranks: int, rows: dict[str, Row]) -> None:
    for backend, row in rows.items():
        times = (row.start_s, row.connected_s, row.all_reduce_s, row.collectives_s)
        gloo = rows.get("gloo")
        table.add_row(
            *(str(num_ranks), backend),
            *(f"{seconds * 1e3:.0f}" for seconds in times),
            "{} -> {}".format(*row.open_files),
            *(str(row.num_calls), str(row.wrong)),
            f"{gloo.start_s / row.start_s:.2f}x" if gloo else "-",
            f"{gloo.connected_s / row.connected_s:.2f}x" if gloo else "-",
        )


def _rows(backends: list[str], rounds: int, start: Callable[[str], list[Start]]) -> dict[str, Row]:
    """``rounds`` starts with each backend, in turns."""
    starts: dict[str, list[list[Start]]] = {backend: [] for backend in backends}
    for _ in range(rounds):
        for backend in backends:
            starts[backend].append(start(backend))
    return {backend: Row.of(each) for backend, each in starts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--ranks", default=RANKS, help=f"of this host, by default {RANKS}")
    parser.add_argument(
        "--labs",
        nargs="*",
        default=LABS,
        metavar="TOPOLOGY",
        help=f"one rank on each of their hosts, by default {' '.join(LABS)}; none: no lab",
    )
    parser.add_argument(
        "--backends", type=comma_list(BACKENDS, "backend"), default=list(BACKENDS), metavar="NAMES"
    )
    parser.add_argument("--rounds", type=int, default=3, help="starts of each, in turns")
    arguments = parser.parse_args()
    wrong = 0
    table = _table("Ranks of one host")
    for num_ranks in map(int, filter(None, arguments.ranks.split(","))):
        start = partial(measure, num_ranks=num_ranks)
        rows = _rows(arguments.backends, arguments.rounds, start)
        _add(table, num_ranks, rows)
        wrong += sum(row.wrong for row in rows.values())
    if table.row_count:
        console.print(table)
    for spec in arguments.labs:
        table = _table(f"{spec}, a rank on each host")
        with Lab(spec) as lab:
            start = partial(measure_in_lab, lab=lab)
            rows = _rows(arguments.backends, arguments.rounds, start)
            _add(table, len(topology.hosts(lab.graph())), rows)
        wrong += sum(row.wrong for row in rows.values())
        console.print(table)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
