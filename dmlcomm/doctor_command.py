"""``dmlcomm doctor``: the command line."""

import json
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit
from rich.console import Console
from rich.table import Table

from dmlcomm import doctor as _doctor
from dmlcomm._shell import FAILED, fail, json_option, new_table
from dmlcomm.doctor import Values
from dmlcomm.errors import Error
from dmlcomm.planning import report as planned

if TYPE_CHECKING:
    from dmlcomm.planning.measure import Measured

console = Console()


@click.command()
@click.option(
    "--measure",
    is_flag=True,
    help="Also show what each NIC carries between the hosts, beside its driver's figure. "
    "Start the command on every host, with `torchrun --nnodes ... -m dmlcomm doctor "
    "--measure` or `dmlcomm lab run -- python -m dmlcomm doctor --measure`: for some "
    "seconds all ranks send to each other, and rank 0 reports.",
)
@json_option
def doctor(measure: bool, as_json: bool) -> None:
    """Show what dmlcomm uses on this machine, what it does not, and why.

    The exit code is 1 when the configuration cannot work here.
    """
    measured = None
    if measure:
        measured = _measure()
        if measured is None:
            return  # rank 0 prints
    report = _doctor.examine()
    if as_json:
        print(json.dumps(report | _rails(measured), indent=2))
    else:
        for table in _tables(report):
            console.print(table)
        if measured is not None:
            console.print(planned.rails_table(measured))
        for advice in report["advice"]:
            console.print(f"[bold yellow]advice:[/] {advice}", highlight=False)
        for problem in report["problems"]:
            console.print(f"[bold red]problem:[/] {problem}", highlight=False)
        if not report["problems"]:
            console.print("[bold green]No problem found.[/]")
    if report["problems"]:
        raise Exit(FAILED)


def _measure() -> "Measured | None":
    # With torch, which takes a second to load.
    from dmlcomm.planning.measure import measure_cluster

    try:
        return measure_cluster(None, None)
    except (ValueError, Error) as error:
        fail(error)


def _rails(measured: "Measured | None") -> Values:
    return {} if measured is None else {"rails": planned.rails_as_json(measured.rails)}


def _tables(report: Values) -> list[Table]:
    return [
        _system(report),
        _interfaces(report["interfaces"]),
        _topology(report["topology"]),
        _transports(report),
        _algorithms(report["algorithms"]),
        _configuration(report["configuration"]),
    ]


def _system(report: Values) -> Table:
    table = new_table("System", "what", "value")
    for name, version in report["versions"].items():
        table.add_row(name, version)
    table.add_row("cores", str(report["cpu"]["cores"]))
    table.add_row("reduction kernels", report["cpu"]["kernels"])
    return table


def _interfaces(interfaces: list[Values]) -> Table:
    table = new_table("Interfaces", "name", "addresses", "MTU", "driver", "used as")
    for interface in interfaces:
        chosen = interface["rail"] is not None
        table.add_row(
            interface["name"],
            "\n".join(interface["addresses"]) or "-",
            str(interface["mtu"]),
            f"{interface['speed_mbps']} Mb/s" if interface["speed_mbps"] else "unknown",
            f"[green]rail {interface['rail']}[/]" if chosen else f"no: {interface['why_not']}",
        )
    return table


def _topology(topology: Values) -> Table:
    table = new_table("Topology (DMLCOMM_TOPOLOGY)", "what", "value")
    table.add_row("setting", topology["setting"])
    if topology["network"] != topology["setting"]:
        table.add_row("network", topology["network"])
    if topology["digits"] is not None:
        table.add_row("digits of this host", ", ".join(map(str, topology["digits"])))
    known = "" if topology["certain"] else " (in this order; subnets of other hosts may change it)"
    for level, interface in enumerate(topology["levels"]):
        table.add_row(f"level {level}", interface + known)
    return table


def _transports(report: Values) -> Table:
    table = new_table("Transports", "name", "works", "how, or why not")
    for transport in report["transports"]:
        works = "[green]yes[/]" if transport["works"] else "[red]no[/]"
        table.add_row(transport["name"], works, transport["detail"])
    controls = report["congestion_controls"]
    usable = f"{', '.join(controls['usable'])} (system: {controls['system_default']})"
    if controls["refused"]:
        usable += f"; not permitted to this user: {', '.join(controls['refused'])}"
    table.add_row("tcp congestion control", "", usable)
    return table


def _algorithms(algorithms: dict[str, list[str]]) -> Table:
    table = new_table("Algorithms (DMLCOMM_ALGORITHM)", "operation", "names")
    for operation, names in algorithms.items():
        table.add_row(operation, ", ".join(names) or "-")
    return table


def _configuration(entries: list[Values]) -> Table:
    table = new_table("Configuration", "variable", "value", "default")
    for entry in entries:
        style = "bold yellow" if entry["changed"] else ""
        default = _shown(entry["default"]) if entry["changed"] else "the same"
        table.add_row(entry["variable"], _shown(entry["value"]), default, style=style)
    return table


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if value not in ("", None) else "-"
