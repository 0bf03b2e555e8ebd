"""The output of the commands of ``dmlcomm lab``: facts, live tables, a progress bar."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dmlcomm import _shell
from dmlcomm.lab import graph as topology
from dmlcomm.lab import sampling
from dmlcomm.lab.client import Client
from dmlcomm.lab.graph import NodeKind
from dmlcomm.lab.tables import status_table

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
        "hosts": len(topology.nodes_of_kind(graph, NodeKind.HOST)),
        "links": graph.number_of_edges(),
        "pid": pid,
        "user_namespace": description["user_namespace"],
    }


def measured(client: Client, interval_s: float) -> Table:
    """The table of ``lab status``, over the next ``interval_s`` seconds. Raises LabError."""
    traffic = sampling.measure(client, interval_s)
    return status_table(f'lab "{client.name}"', traffic)


def show_live(client: Client, interval_s: float) -> None:
    """The table of ``lab status``, until Ctrl-C or the end of the lab, which is a LabError."""
    before = sampling.read(client)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            after = sampling.read(client)
            traffic = sampling.between(client, before, after)
            live.update(status_table(f'lab "{client.name}"', traffic), refresh=True)
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
