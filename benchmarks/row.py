"""`Row`: one result of a benchmark that has bars, with what it is compared with."""

from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks import report


@dataclass(frozen=True)
class Row:
    """One case. ``most_of_bound`` and ``least_speedup`` are its bars, None where there is none.

    Attributes:
        seconds: dmlcomm's, as docs/numbers.md has it.
        bound_s: the least that the network allows; None where links have no rate.
        peer, peer_s: who did the same beside it, and how long that took.
        wrong: elements of dmlcomm's and the peer's results that are not what they should be.
        remark: what else was measured.
    """

    experiment: str
    case: str
    seconds: float
    bound_s: float | None = None
    most_of_bound: float | None = None
    peer: str | None = None
    peer_s: float | None = None
    least_speedup: float | None = None
    wrong: int = 0
    remark: str = ""

    @property
    def ratio(self) -> float | None:
        """Time divided by the bound."""
        return self.seconds / self.bound_s if self.bound_s else None

    @property
    def speedup(self) -> float | None:
        """The peer's time divided by dmlcomm's."""
        return self.peer_s / self.seconds if self.peer_s else None

    def missed(self) -> list[str]:
        """The bars that are missed, in words."""
        what, found = f"{self.experiment}, {self.case}", []
        if self.ratio and self.most_of_bound and self.ratio > self.most_of_bound:
            found.append(f"{what}: {self.ratio:.3f} x the bound, at most {self.most_of_bound}")
        if self.speedup and self.least_speedup and self.speedup < self.least_speedup:
            lead = f"{self.speedup:.3f} x as fast as {self.peer}"
            found.append(f"{what}: {lead}, at least {self.least_speedup}")
        return found

    def as_dict(self) -> dict:
        """For JSON."""
        return asdict(self) | {"ratio": self.ratio, "speedup": self.speedup}


def table(rows: list[Row]) -> Table:
    """One line per row; times in milliseconds, every comparison with its bar."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    found.add_column("case", no_wrap=True)
    for column in ("dmlcomm", "bound", "ratio", "bar"):
        found.add_column(column, justify="right")
    found.add_column("peer")
    for column in ("its time", "speed-up", "bar", "#wrong"):
        found.add_column(column, justify="right")
    for row in rows:
        found.add_row(
            row.case,
            *map(_milliseconds, (row.seconds, row.bound_s)),
            _number(row.ratio, ".3f"),
            _number(row.most_of_bound, "g", "≤ "),
            row.peer or "-",
            _milliseconds(row.peer_s),
            _number(row.speedup, ".2f"),
            _number(row.least_speedup, "g", "≥ "),
            str(row.wrong),
        )
    return found


def conclude(title: str, rows: list[Row], json_file: Path | None, strict: bool) -> None:
    """Prints the table, remarks and missed bars, and writes JSON lines.

    Exits with 1 when a result is wrong, or if ``strict`` when a bar is missed.
    """
    report.console.print(title, table(rows))
    for row in rows:
        if row.remark:
            report.console.print(f"{row.case}: {row.remark}")
    missed = [line for row in rows for line in row.missed()]
    for line in missed:
        report.console.print(f"missed: {line}")
    if json_file:
        json_file.unlink(missing_ok=True)
        report.append_json_lines(
            json_file, [report.environment(), *(row.as_dict() for row in rows)]
        )
    if any(row.wrong for row in rows) or (strict and missed):
        raise SystemExit(1)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def _number(value: float | None, form: str, relation: str = "") -> str:
    return "-" if value is None else f"{relation}{value:{form}}"
