"""``dmlcomm plan``: the command line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dmlcomm import _core, _shell
from dmlcomm.errors import Error
from dmlcomm.planning import network as networks
from dmlcomm.planning import plan_file, report, trace_file
from dmlcomm.planning.network import PlannedNetwork
from dmlcomm.planning.pricing import SIZED_OPERATIONS, choose, size_ranges
from dmlcomm.planning.sizes import ELEMENT_BYTES, parse_size
from dmlcomm.planning.sizes import element_bytes as parse_dtype

if TYPE_CHECKING:
    from dmlcomm.planning.measure import Measured

console = _shell.console()


@click.command()
@click.option(
    "--topology",
    default="",
    show_default=False,
    help="flat:N,k (hosts, NICs), bcube:n,k, grid:AxB..., a .yaml file; --measure finds it.",
)
@click.option(
    "--rate",
    default="",
    show_default=False,
    help="Of every NIC, as 200mbit; or a comma list, one per level or rail. Measured rates "
    "replace it.",
)
@click.option(
    "--size", default="12.5MB", help="Of the vector, or of all pieces together: 12.5MB, 64MiB."
)
@click.option("--op", default="all_reduce", help="The operation; `dmlcomm doctor` lists them.")
@click.option(
    "--ranks-per-host",
    "-m",
    type=click.IntRange(min=1),
    default=1,
    help="Ranks on every host of --topology.",
)
@click.option(
    "--mtu",
    type=int,
    help="Bytes of an IP packet; by default 1500, with --measure that of the NICs.",
)
@click.option("--dtype", default="f32", help=f"Of {', '.join(ELEMENT_BYTES)}.")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure the cluster: start the command on every host, with `torchrun --nnodes "
    "... -m dmlcomm plan --measure` or `dmlcomm lab run -- python -m dmlcomm plan "
    "--measure`. For some seconds all ranks send to each other. Rank 0 shows what each NIC "
    "has carried, beside its driver's figure, and plans with what it measured.",
)
@click.option(
    "--output",
    default="",
    show_default=False,
    help="Write a plan file, for DMLCOMM_PLAN, to this path.",
)
@click.option(
    "--verify", is_flag=True, help="Prove the schedules of the operation for this network."
)
@click.option(
    "--trace",
    type=_shell.PATH,
    help="Write what every rank does, for other simulators: to FILE.goal for LogGOPSim and "
    "ATLAHS, or with FILE.et to FILE.0.et, FILE.1.et, ... for ASTRA-sim (Chakra).",
)
@click.option(
    "--algorithm", default="", show_default=False, help="Of --trace, instead of the choice."
)
@_shell.json_option
def plan(
    topology: str,
    rate: str,
    size: str,
    op: str,
    ranks_per_host: int,
    mtu: int | None,
    dtype: str,
    measure: bool,
    output: str,
    verify: bool,
    trace: Path | None,
    algorithm: str,
    as_json: bool,
) -> None:
    """Predict what each algorithm of an operation takes on a network, and which one is best.

    Rates count whole Ethernet frames, so predicted times include headers; the bound does not. For a
    model's layers, with parameter servers and proxies, too: `dmlcomm strategy`.
    """
    try:
        if algorithm and trace is None:
            raise ValueError("--algorithm is that of a trace: give --trace, too")
        num_bytes, element_bytes = parse_size(size), parse_dtype(dtype)
        priced = _priced(topology, rate, ranks_per_host, mtu, measure)
        if priced is None:
            return  # rank 0 prints
        network = priced.network
        if verify:
            _core.verify(network.core(), op)
        choice = choose(network, priced.core, op, num_bytes, element_bytes)
        _report(report.Planned(network, op, num_bytes, choice), priced.measured, as_json)
        if output:
            plan_file.write(_plan(network, priced.core), output)
        if trace is not None:
            taken = algorithm or choice.chosen.name
            trace_file.write(trace, network, op, num_bytes, element_bytes, taken)
        if verify and not as_json:
            console.print(f"The schedules of {op} on {network} are verified.", highlight=False)
    except (ValueError, Error) as error:
        _shell.fail(error)


@dataclass(frozen=True)
class _Priced:
    """A network with the prices to count with, and where they come from if they were measured."""

    network: PlannedNetwork
    core: _core.Topology
    measured: "Measured | None" = None


def _priced(
    topology: str, rate: str, ranks_per_host: int, mtu: int | None, measure: bool
) -> _Priced | None:
    """None on ranks other than 0 of a job that is measured."""
    if not measure:
        mtu = networks.DEFAULT_MTU if mtu is None else mtu
        network = networks.parse(topology, rate, ranks_per_host, mtu)
        return _Priced(network, network.core())
    # torch is needed here only, and takes a second to load.
    from dmlcomm.planning.measure import measure_cluster

    expected = None
    if topology:
        expected = networks.parse(topology, rate, ranks_per_host, needs_rates=False)
    measured = measure_cluster(expected, mtu)
    if measured is None:
        return None
    return _Priced(measured.network, measured.core(), measured)


def _report(planned: report.Planned, measured: "Measured | None", as_json: bool) -> None:
    if as_json:
        values = report.as_json(planned)
        if measured is not None:
            values["rails"] = report.rails_as_json(measured.rails)
        print(json.dumps(values, indent=2))
        return
    if measured is not None:
        console.print(report.rails_table(measured))
        console.print(str(measured), highlight=False, soft_wrap=True)
    console.print(report.heading(planned), highlight=False)
    console.print(report.table(planned))
    choice = planned.choice
    console.print(f"[bold]{choice.chosen.name}[/]: {choice.reason}", highlight=False)


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
