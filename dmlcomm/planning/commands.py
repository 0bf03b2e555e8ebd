"""``dmlcomm plan``: the command line."""

import json
import re
from typing import Annotated

import typer

from dmlcomm import _core, _shell
from dmlcomm.planning import network as networks
from dmlcomm.planning import plan_file, report
from dmlcomm.planning.network import PlanError, PlannedNetwork
from dmlcomm.planning.pricing import SIZED_OPERATIONS, choose, size_ranges

ELEMENT_BYTES = {"i8": 1, "u8": 1, "f16": 2, "bf16": 2, "f32": 4, "i32": 4, "f64": 8, "i64": 8}
SIZE_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20}

app = _shell.application()

console = _shell.console()


@app.command()
def plan(
    topology: Annotated[
        str, typer.Option(help="flat:N,k (hosts, NICs), bcube:n,k, grid:AxB..., or a .yaml file.")
    ],
    rate: Annotated[
        str,
        typer.Option(help="Of every NIC, as 200mbit; or a comma list, one per level or rail."),
    ] = "",
    size: Annotated[
        str, typer.Option(help="Of the vector, or of all pieces together: 12.5MB, 64MiB.")
    ] = "12.5MB",
    op: Annotated[str, typer.Option(help="The operation; `dmlcomm doctor` lists them.")] = (
        "all_reduce"
    ),
    ranks_per_host: Annotated[
        int, typer.Option("--ranks-per-host", "-m", min=1, help="Ranks on every host.")
    ] = 1,
    mtu: Annotated[int, typer.Option(help="Bytes of an IP packet.")] = 1500,
    dtype: Annotated[str, typer.Option(help=f"Of {', '.join(ELEMENT_BYTES)}.")] = "f32",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure latency and rates of the running cluster; start on all its ranks.",
        ),
    ] = False,
    output: Annotated[
        str, typer.Option(help="Write a plan file, for DMLCOMM_PLAN, to this path.")
    ] = "",
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Prove the schedules of the operation for this network."),
    ] = False,
    as_json: _shell.AsJson = False,
) -> None:
    """Predict what each algorithm of an operation takes on a network, and which one is best.

    Rates count whole Ethernet frames, so predicted times include headers; the bound does not.
    """
    try:
        network = networks.parse(topology, rate, ranks_per_host, mtu)
        num_bytes, element_bytes = parse_size(size), _element_bytes(dtype)
        if verify:
            _core.verify(network.core(), op)
        core = None
        if measure:
            # torch is needed here only, and takes a second to load.
            from dmlcomm.planning.measure import measure_cluster

            measured = measure_cluster(network)
            if measured is None:
                return  # rank 0 prints
            network, core = measured.network, measured.core()
            console.print(str(measured), highlight=False, soft_wrap=True)
        _report(network, core or network.core(), op, num_bytes, element_bytes, output, as_json)
        if verify and not as_json:
            console.print(f"The schedules of {op} on {network} are verified.", highlight=False)
    except (PlanError, ValueError) as error:
        _shell.fail(error)


def _report(
    network: PlannedNetwork,
    core: _core.Topology,
    op: str,
    num_bytes: int,
    element_bytes: int,
    output: str,
    as_json: bool,
) -> None:
    choice = choose(network, core, op, num_bytes, element_bytes)
    if as_json:
        print(json.dumps(report.as_json(network, op, num_bytes, choice), indent=2))
    else:
        console.print(report.heading(network, op, num_bytes, choice), highlight=False)
        console.print(report.table(network, choice))
        console.print(f"[bold]{choice.chosen.name}[/]: {choice.reason}", highlight=False)
    if output:
        plan_file.write(_plan(network, core), output)


def _plan(network: PlannedNetwork, core: _core.Topology) -> plan_file.PlanFile:
    return plan_file.PlanFile(
        hosts=network.num_hosts,
        ranks_per_host=network.ranks_per_host,
        grid=network.sizes,
        algorithms={op: size_ranges(network, core, op) for op in SIZED_OPERATIONS},
        prices={
            "rates_mbit": [round(rate / 1e6, 3) for rate in network.rates_bps],
            "mtu": network.mtu,
            "alpha_us": round(core.alpha_s * 1e6, 3),
            "overhead_us": round(core.overhead_s * 1e6, 3),
        },
    )


def parse_size(text: str) -> int:
    """ "12.5MB" -> 12,500,000 bytes."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([A-Za-z]*)", text)
    if match is None or match[2] not in SIZE_UNITS:
        raise PlanError(f'"{text}" is not a size such as 12.5MB, 64MiB or 4096')
    return round(float(match[1]) * SIZE_UNITS[match[2]])


def _element_bytes(dtype: str) -> int:
    if dtype not in ELEMENT_BYTES:
        raise PlanError(f'"{dtype}" is not of {", ".join(ELEMENT_BYTES)}')
    return ELEMENT_BYTES[dtype]
