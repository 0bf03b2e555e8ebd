"""The output of the commands of ``dmlcomm lab``: facts, tables, a progress bar."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dmlcomm import _shell
from dmlcomm.lab import sampling
from dmlcomm.lab.check import Result
from dmlcomm.lab.client import Client
from dmlcomm.lab.sampling import Direction, LinkTraffic
from dmlcomm.topology import graph as topology
from dmlcomm.topology.shape import Shape
from dmlcomm.units import format_bytes, format_rate

console = _shell.console(highlight=False)


def facts(name: str) -> dict[str, Any]:
    """What ``lab list`` says of a lab. Raises LabError."""
    with Client(name) as client:
        description = client.ask("describe")
        pid = client.holder.pid
    graph = topology.from_json(description["graph"])
    return {
        "name": name,
        "topology": graph.graph["spec"],
        "hosts": len(topology.hosts(graph)),
        "links": graph.number_of_edges(),
        "pid": pid,
        "user_namespace": description["user_namespace"],
    }


def _status_table(client: Client, traffic: Sequence[LinkTraffic]) -> Table:
    table = _shell.new_table(f'lab "{client.name}"')
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
            *_cells(back, link.shape.back),
            str(there.drops + back.drops),
        )
    return table


def check_table(result: Result) -> Table:
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


def measured(client: Client, interval_s: float) -> Table:
    """The table of ``lab status``, over the next ``interval_s`` seconds. Raises LabError."""
    return _status_table(client, sampling.measure(client, interval_s))


def show_live(client: Client, interval_s: float) -> None:
    """The table of ``lab status``, until Ctrl-C or the end of the lab, which is a LabError."""
    before = sampling.read(client)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            after = sampling.read(client)
            traffic = sampling.between(client, before, after)
            live.update(_status_table(client, traffic), refresh=True)
            before = after


@contextmanager
def progress_bar() -> Iterator[Any]:
    """A function that moves a bar; in a terminal only, and gone at the end."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting")
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )
