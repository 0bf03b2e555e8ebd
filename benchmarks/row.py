"""`Row`: one result of a benchmark that has bars, with what it is compared with."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks import report

MOST_MODEL_ERROR = 0.1


@dataclass(frozen=True)
class Row:
    """One case. ``most_of_bound`` and ``least_speedup`` are its bars, None where there is none.

    Attributes:
        seconds: dmlcomm's, as docs/numbers.md has it.
        bound_s: the least that the network allows; None where links have no rate.
        peer, peer_s: who did the same beside it, and how long that took.
        model_s: what the planner expected.
        held_from: of calls that follow a change, the one from which on they take ``most_of_bound``
            at most, counted from 1; None: none. ``seconds`` is of these.
        held_by: a bar: the latest that ``held_from`` may be.
        grown_mib, most_grown_mib: by how much memory has grown meanwhile, and its bar.
        points_lost, most_points_lost: by how many percentage points the accuracy is below the
            peer's, and its bar.
        wrong: elements of dmlcomm's and the peer's results that are not what they should be.
        resent: share of the bytes that TCP has sent again, as lost.
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
    model_s: float | None = None
    held_from: int | None = None
    held_by: int | None = None
    grown_mib: float | None = None
    most_grown_mib: float | None = None
    points_lost: float | None = None
    most_points_lost: float | None = None
    wrong: int = 0
    resent: float | None = None
    remark: str = ""

    @property
    def ratio(self) -> float | None:
        """Time divided by the bound."""
        return self.seconds / self.bound_s if self.bound_s else None

    @property
    def speedup(self) -> float | None:
        """The peer's time divided by dmlcomm's."""
        return self.peer_s / self.seconds if self.peer_s else None

    @property
    def model_error(self) -> float | None:
        """By which share of the time the model is too high."""
        return self.model_s / self.seconds - 1 if self.model_s else None

    def beside(self, peer: str, seconds: float, wrong: int) -> "Row":
        """The same with a peer, and what was wrong of its results."""
        return replace(self, peer=peer, peer_s=seconds, wrong=self.wrong + wrong)

    def missed(self) -> list[str]:
        """The bars that are missed, in words."""
        what, found = f"{self.experiment}, {self.case}", []
        if self.ratio and self.most_of_bound and self.ratio > self.most_of_bound:
            found.append(f"{what}: {self.ratio:.3f} x the bound, at most {self.most_of_bound}")
        if self.held_by and (self.held_from is None or self.held_from > self.held_by):
            first = "no call" if self.held_from is None else f"call {self.held_from}"
            lead = f"within {self.most_of_bound} x the bound from {first} on"
            found.append(f"{what}: {lead}, at most from {self.held_by}")
        if self.speedup and self.least_speedup and self.speedup < self.least_speedup:
            lead = f"{self.speedup:.3f} x as fast as {self.peer}"
            found.append(f"{what}: {lead}, at least {self.least_speedup}")
        if self.grown_mib and self.most_grown_mib and self.grown_mib > self.most_grown_mib:
            found.append(f"{what}: {self.grown_mib:.1f} MiB more, at most {self.most_grown_mib:g}")
        if self.most_points_lost and (self.points_lost or 0) > self.most_points_lost:
            lead = f"{self.points_lost:.2f} points less than {self.peer}"
            found.append(f"{what}: {lead}, at most {self.most_points_lost:g}")
        if self.model_error and abs(self.model_error) > MOST_MODEL_ERROR:
            lead = f"the model is {self.model_error:+.1%} off"
            found.append(f"{what}: {lead}, at most {MOST_MODEL_ERROR:.0%}")
        return found

    def as_dict(self) -> dict:
        """For JSON."""
        computed = {"ratio": self.ratio, "speedup": self.speedup, "model_error": self.model_error}
        return asdict(self) | computed


def table(rows: list[Row]) -> Table:
    """One line per row; times in milliseconds, every comparison with its bar.

    That of the model, which stands in no column, is `MOST_MODEL_ERROR`, either way.
    """
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    found.add_column("case", overflow="fold")  # figures are never cut
    has_model = any(row.model_s for row in rows)
    for column in ("dmlcomm", *(["model"] if has_model else []), "bound", "ratio"):
        found.add_column(column, justify="right", no_wrap=True)
    has_resent = any(row.resent is not None for row in rows)
    if has_resent:
        found.add_column("resent", justify="right", no_wrap=True)
    has_memory = any(row.grown_mib is not None for row in rows)
    if has_memory:
        found.add_column("MiB more", justify="right", no_wrap=True)
    has_points = any(row.points_lost is not None for row in rows)
    if has_points:
        found.add_column("points lost", justify="right", no_wrap=True)
    found.add_column("peer", no_wrap=True)
    for column in ("its time", "speed-up", "#wrong"):
        found.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        found.add_row(
            row.case,
            _milliseconds(row.seconds),
            *([_number(row.model_error, "+.1%")] if has_model else []),
            _milliseconds(row.bound_s),
            _judged(row.ratio, ".3f", row.most_of_bound, "≤"),
            *([_number(row.resent, ".2%")] if has_resent else []),
            *([_judged(row.grown_mib, ".1f", row.most_grown_mib, "≤")] if has_memory else []),
            *([_judged(row.points_lost, ".2f", row.most_points_lost, "≤")] if has_points else []),
            row.peer or "-",
            _milliseconds(row.peer_s),
            _judged(row.speedup, ".2f", row.least_speedup, "≥"),
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


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _judged(value: float | None, form: str, bar: float | None, relation: str) -> str:
    """The number, and what it should be."""
    return _number(value, form) + (f" {relation} {bar:g}" if value is not None and bar else "")
