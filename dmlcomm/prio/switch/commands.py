"""``dmlcomm switch``: the command line."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from dmlcomm._shell import Group, console, fail, inherited_environment, json_option, new_table
from dmlcomm.errors import LabError, SwitchError
from dmlcomm.lab.client import Client
from dmlcomm.lab.entry import Entry
from dmlcomm.lab.wire import Message
from dmlcomm.prio.switch.marks import Mark
from dmlcomm.prio.switch.settings import MOST_QUEUES, Settings
from dmlcomm.topology.graph import NodeKind
from dmlcomm.units import format_bytes, format_rate, parse_rate

LAB_BRIDGE = "br0"


# What puts packets into queues.
CLASSIFIERS = ("auto", "ebpf", "u32")

bridge_option = click.option("--bridge", help="Of this machine, as br0.")
lab_option = click.option("--lab", help="A lab, instead of this machine.")
switch_option = click.option(
    "--switch", multiple=True, help="Of the lab, as switch0.0; default: all."
)

_DEFAULT = Settings("")


@click.group("switch", cls=Group)
def app() -> None:
    """A Linux bridge that sends packets of urgent operations first."""


@app.command()
@bridge_option
@lab_option
@switch_option
@click.option(
    "--mark",
    type=click.Choice([mark.value for mark in Mark]),
    default=_DEFAULT.mark.value,
    help="That packets carry: DMLCOMM_TICKET_MARK of the jobs.",
)
@click.option(
    "--queues",
    type=click.IntRange(1, MOST_QUEUES),
    default=_DEFAULT.num_queues,
    help="Of every port, one per layer.",
)
@click.option(
    "--slide-bytes",
    type=click.IntRange(1, 1 << 30),
    default=_DEFAULT.slide_bytes,
    help="After which the priority window moves.",
)
@click.option(
    "--idle-ms",
    type=click.IntRange(1, 600_000),
    default=_DEFAULT.idle_ms,
    help="A pause after which the window begins anew.",
)
@click.option(
    "--unmarked-share",
    type=click.FloatRange(0.01, 0.9),
    default=_DEFAULT.unmarked_share,
    help="Of the rate, for packets without a mark.",
)
@click.option("--rate", help="Of every port; default: its own.")
@click.option(
    "--classifier",
    type=click.Choice(CLASSIFIERS),
    default="auto",
    help="auto: eBPF where it is permitted.",
)
def start(
    bridge: str | None,
    lab: str | None,
    switch: tuple[str, ...],
    mark: str,
    queues: int,
    slide_bytes: int,
    idle_ms: int,
    unmarked_share: float,
    rate: str | None,
    classifier: str,
) -> None:
    """Schedule the ports of a bridge, or of a lab's switches, until `dmlcomm switch stop`."""
    with _errors():
        options = {
            "mark": mark,
            "num_queues": queues,
            "slide_bytes": slide_bytes,
            "idle_ms": idle_ms,
            "unmarked_share": unmarked_share,
            "rate_bps": _rate(rate),
            "classifier": classifier,
        }
        begun: list[_Place] = []
        for place in _places(bridge, lab, switch):
            settings = asdict(_DEFAULT) | options | {"bridge": place.bridge}
            try:
                report = place.run("daemon", json.dumps(settings))
            except SwitchError:
                _stop_all(begun)
                raise
            begun.append(place)
            print(
                f"{place.name} is scheduled: {report['ports']} ports, {queues} queues each, "
                f"{report['classifier']}"
            )


@app.command()
@bridge_option
@lab_option
@switch_option
@json_option
def status(bridge: str | None, lab: str | None, switch: tuple[str, ...], as_json: bool) -> None:
    """Show the priority window, the queues, and bytes by layer."""
    with _errors():
        places = _places(bridge, lab, switch)
        found = [{"switch": p.name} | p.run("ask", p.bridge, "status") for p in places]
        if as_json:
            print(json.dumps({"switches": found}, indent=2))
            return
        for report in found:
            _show(report)


@app.command()
@bridge_option
@lab_option
@switch_option
def stop(bridge: str | None, lab: str | None, switch: tuple[str, ...]) -> None:
    """End it: ports have the queues again that they had before."""
    with _errors():
        _stop_all(_places(bridge, lab, switch))


def _stop_all(places: Sequence["_Place"]) -> None:
    """Stops each that can be stopped. Raises SwitchError for the others, when all are done."""
    errors = []
    for place in places:
        try:
            place.run("ask", place.bridge, "stop")
            print(f"{place.name} is not scheduled any more")
        except SwitchError as error:
            errors.append(str(error))
    if errors:
        raise SwitchError("; ".join(errors))


class _Place:
    """A bridge of this machine, or of a node of a lab."""

    def __init__(self, name: str, bridge: str, entry: Entry | None = None) -> None:
        self.name = name
        self.bridge = bridge
        self._entry = entry

    def run(self, module: str, *arguments: str) -> Message:
        """The line of JSON that a module prints there. Raises SwitchError, LabError."""
        command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
        with self._start(command) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
        if not line:
            raise SwitchError(f"{self.name}: the process of the switch has ended; see above")
        answer: Message = json.loads(line)
        if "error" in answer:
            raise SwitchError(f"{self.name}: {answer['error']}")
        return answer

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        if self._entry is None:
            return subprocess.Popen(command, **options)
        return self._entry.start(self.name, command, inherited_environment(), **options)


def _places(bridge: str | None, lab: str | None, nodes: Sequence[str]) -> list[_Place]:
    if (bridge is None) == (lab is None):
        raise SwitchError("say which: --bridge br0 of this machine, or --lab NAME")
    if bridge is not None:
        if nodes:
            raise SwitchError("--switch names a switch of a lab, and needs --lab")
        return [_Place(bridge, bridge)]
    client = Client(str(lab))
    graph = client.graph()
    known = [node for node, kind in graph.nodes(data="kind") if kind == NodeKind.SWITCH]
    for node in nodes:
        if node not in known:
            raise SwitchError(
                f'the lab "{lab}" has no switch "{node}", but {", ".join(known) or "none"}'
            )
    if not known:
        raise SwitchError(f'the lab "{lab}" has no switches: its nodes route')
    entry = Entry(client)
    fabrics = graph.nodes(data="fabric")
    return [_Place(node, node if fabrics[node] else LAB_BRIDGE, entry) for node in nodes or known]


def _rate(text: str | None) -> int | None:
    try:
        return None if text is None else parse_rate(text)
    except ValueError as error:
        raise SwitchError(f"--rate: {error}") from error


def _show(report: Message) -> None:
    out = console()
    for port in report["ports"]:
        window = port["window"]
        phase = "rising" if window["is_rising"] else "descending"
        title = (
            f"{report['switch']} {port['port']}: {format_rate(port['rate_bps'])}, window "
            f"{window['first']} to {window['last']}, {phase}, {window['moves']} moves"
        )
        table = new_table(title, "queue", "tickets", "sent", "waiting", "drops")
        rows = [(str(number), queue) for number, queue in enumerate(port["queues"])]
        for name, queue in [*rows, ("last", port["unmarked"] | {"tickets": "no mark"})]:
            sizes = format_bytes(queue["sent_bytes"]), format_bytes(queue["backlog_bytes"])
            table.add_row(name, queue["tickets"], *sizes, str(queue["drops"]))
        out.print(table)
        layers = [f"{e['tickets']}: {format_bytes(e['bytes'])}" for e in port["layers"]]
        out.print(f"bytes by ticket: {', '.join(layers) or 'none'}")
    for reason in report["not_scheduled"].values():
        out.print(f"not scheduled: {reason}")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (SwitchError, LabError) as error:
        fail(error)
