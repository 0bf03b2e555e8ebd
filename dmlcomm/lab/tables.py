"""Tables of ``dmlcomm lab``."""

from collections.abc import Sequence

from rich.table import Table

from dmlcomm.lab.check import Result
from dmlcomm.lab.sampling import Direction, LinkTraffic
from dmlcomm.lab.units import Shape
from dmlcomm.units import format_bytes, format_rate


def status_table(title: str, traffic: Sequence[LinkTraffic]) -> Table:
    """One row per link: what each of its ends sends."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("link", "shape"):
        table.add_column(column, no_wrap=True)
    for column in ("sent ->", "rate ->", "sent <-", "rate <-", "drops"):
        table.add_column(column, justify="right", no_wrap=True)
    for entry in traffic:
        link = entry.link
        shape = str(link.shape) if link.up else "[bold red]down[/]"
        there, back = entry.directions
        table.add_row(
            f"{link.a} - {link.b}",
            shape,
            *_cells(there, link.shape),
            *_cells(back, link.shape),
            str(there.drops + back.drops),
        )
    return table


def check_table(result: Result) -> Table:
    """One row per direction of a link under load."""
    table = Table("sender", "expected", "measured", "difference")
    for line in result.lines:
        difference = f"{line.share - 1:+.1%}"
        table.add_row(
            str(line.sender),
            format_rate(line.expected_bps),
            format_rate(line.measured_bps),
            difference if line.is_exact else f"[bold red]{difference}[/]",
        )
    return table


def _cells(direction: Direction, shape: Shape) -> tuple[str, str]:
    rate = format_rate(direction.rate_bps)
    if shape.rate_bps and direction.rate_bps >= 0.9 * shape.rate_bps:
        rate = f"[bold green]{rate}[/]"
    return format_bytes(direction.bytes), rate
