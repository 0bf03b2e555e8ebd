"""``dmlcomm lab``: the command line of the lab."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dmlcomm._shell import FAILED, AsJson, Command, application
from dmlcomm.errors import LabError
from dmlcomm.lab import background, launch, sampling, wire
from dmlcomm.lab import check as checks
from dmlcomm.lab.client import Client
from dmlcomm.lab.draw import draw as draw_graph
from dmlcomm.lab.environment import parse_assignments
from dmlcomm.lab.lab import shapes_of, start
from dmlcomm.lab.options import Options
from dmlcomm.lab.views import check_table, console, facts, measured, progress_bar, show_live
from dmlcomm.topology import graph as topology
from dmlcomm.topology.builders import build
from dmlcomm.topology.shape import parse_delay_us, parse_link_rate
from dmlcomm.units import format_rate

app = application(help="An emulated cluster with several NICs per host, on this machine.")

DEFAULT_NAME = "lab"

Name = Annotated[
    str | None,
    typer.Option("--name", "-n", help="Which lab, where there are several.", show_default=False),
]


@app.command()
def up(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY",
            help="flat:N,k (hosts, NICs), bcube:n,k, grid:AxBx..., fattree:p[,r=R][,hosts=H], "
            "clos:PxExH,AxC[,r=RxS], psnet:P,W,R[,K=x][@i,j,...][+...] "
            "(servers, workers, NICs of a server), sip:PxTxN (pods, ToRs, servers)",
            show_default=False,
        ),
    ],
    rate: Annotated[
        str, typer.Option(help="Of every link, as 200mbit; or a comma list, one per level.")
    ] = "unlimited",
    delay: Annotated[str, typer.Option(help="One-way delay of every link, as 1ms.")] = "0",
    loss: Annotated[str, typer.Option(help="Packets that every link loses, as 1%.")] = "0%",
    mtu: Annotated[int, typer.Option(help="Bytes of an IP packet on data NICs.")] = Options().mtu,
    congestion: Annotated[
        str, typer.Option(help="TCP congestion control between hosts; empty: the machine's.")
    ] = "cubic",
    forwarding: Annotated[
        bool, typer.Option(help="Hosts forward packets of others, with routes through them.")
    ] = True,
    name: Annotated[str, typer.Option("--name", "-n", help="Name of the lab.")] = DEFAULT_NAME,
) -> None:
    """Build a lab. It stays until `dmlcomm lab down`, and needs root or user namespaces."""
    with _errors():
        begin = time.monotonic()
        graph = build(spec, shapes_of(rate, delay, loss))
        with progress_bar() as progress:
            start(name, graph, Options(mtu, congestion, forwarding), progress=progress)
        seconds = time.monotonic() - begin
        num_hosts, num_links = len(topology.hosts(graph)), graph.number_of_edges()
        console.print(
            f'lab "{name}" is up after {seconds:.2f} s: {spec}, {num_hosts} hosts, '
            f"{len(graph) - num_hosts} switches, {num_links} links ({rate})"
        )


@app.command()
def run(
    command: Command,
    ranks_per_host: Annotated[
        int, typer.Option("--ranks-per-host", "-m", min=1, help="Processes on every host.")
    ] = 1,
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="Start torchrun on every host: -- train.py ...")
    ] = False,
    gloo_nics: Annotated[
        int, typer.Option(min=0, help="How many data NICs gloo is given; 0 is all.")
    ] = 1,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE for every rank.")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="The hosts that take part, as 'worker*' or host0,host3; ranks count through them."
        ),
    ] = "*",
    linger: Annotated[
        float, typer.Option(min=0, help="Seconds for the other ranks after the first failure.")
    ] = 1.0,
    name: Name = None,
) -> None:
    """Run a command as the ranks of a job, with torchrun's environment, on all hosts.

    Output has the rank in front. Signals are passed on. The exit code is that of the first process
    that fails; the others are stopped then.
    """
    with _errors(), Client(_name(name)) as client:
        settings = launch.RunSettings(
            ranks_per_host=ranks_per_host,
            torchrun=torchrun,
            gloo_interfaces=gloo_nics,
            linger_s=linger,
            on=on,
            extra=parse_assignments(env or []),
        )
        code = launch.run(client, command, settings)
    raise typer.Exit(code)


@app.command("exec")
def exec_(
    node: Annotated[str, typer.Argument(help="host3, switch0.1, ...", show_default=False)],
    command: Command,
    name: Name = None,
) -> None:
    """Run one command on one node, with this terminal."""
    with _errors(), Client(_name(name)) as client:
        code = launch.run_one(client, node, command)
    raise typer.Exit(code)


@app.command("set")
def set_(
    place: Annotated[str, typer.Argument(help="host3:eth1", show_default=False)],
    changes: Annotated[
        list[str],
        typer.Argument(
            help="down, up, rate=50mbit, out=50mbit, in=50mbit, mtu=1500, delay=1ms, loss=1%, "
            "tor=2",
            show_default=False,
        ),
    ],
    name: Name = None,
) -> None:
    """Change a link, in both directions, also while a job runs. "down" pulls the cable.

    "out" and "in" are the rates of what that interface sends and receives.

    "tor=2" and "agg=1" move a circuit, as `dmlcomm lab circuit` does.
    """
    with _errors(), Client(_name(name)) as client:
        client.ask("set", place=place, changes=changes)


@app.command()
def circuit(
    moves: Annotated[
        list[str],
        typer.Argument(help="worker3=tor1, host8=tor2, tor3=agg1", show_default=False),
    ],
    dark: Annotated[str, typer.Option(help="How long they lead nowhere, as 50ms.")] = "0",
    name: Name = None,
) -> None:
    """Move circuits together, also while a job runs: connections survive.

    Those of workers of a psnet and of hosts of a sip lead to ToRs, those of ToRs of a sip to
    aggregation switches.
    """
    with _errors(), Client(_name(name)) as client:
        wanted = {}
        for move in moves:
            place, _, switch = move.partition("=")
            if not place or not switch:
                raise LabError(f'"{move}" is no move: expected PLACE=SWITCH, as in host8=tor2')
            wanted[place] = switch
        client.move(wanted, parse_delay_us(dark) / 1e6)


@app.command("load")
def load_(
    interface: Annotated[str, typer.Argument(help="eth1", show_default=False)],
    rate: Annotated[str, typer.Option(help="Of every host, as 100mbit.", show_default=False)],
    name: Name = None,
) -> None:
    """Load one NIC of all hosts with background traffic that does not give way, until Ctrl-C.

    Every host sends to the next one at the same switch. The rate counts whole frames.
    """
    with _errors(), Client(_name(name)) as client, suppress(KeyboardInterrupt):
        rate_bps = parse_link_rate(rate)
        if rate_bps is None:
            raise LabError("a load needs a rate, as 100mbit")
        say = "{} hosts send {} from {} each, until Ctrl-C"
        background.run(
            client,
            interface,
            rate_bps,
            lambda hosts: print(say.format(hosts, format_rate(rate_bps), interface), flush=True),
        )


@app.command()
def status(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    as_json: AsJson = False,
    name: Name = None,
) -> None:
    """Show bytes and rate of every link, live in a terminal until Ctrl-C."""
    with _errors(), Client(_name(name)) as client:
        if as_json:
            links = [entry.as_dict() for entry in sampling.measure(client, interval)]
            report = {"name": client.name, "interval_s": interval, "links": links}
            print(json.dumps(report, indent=2))
        elif once or not console.is_terminal:
            console.print(measured(client, interval))
        else:
            show_live(client, interval)


@app.command()
def check(
    seconds: Annotated[float, typer.Option(min=0.5, help="How long the links are loaded.")] = 3.0,
    limit: Annotated[
        bool, typer.Option("--limit", help="Double the rates until the lab is not exact any more.")
    ] = False,
    as_json: AsJson = False,
    name: Name = None,
) -> None:
    """Load all links at once, in both directions, and compare with their rates.

    The exit code is 1 when a link is further than 5 % from its rate.
    """
    with _errors(), Client(_name(name)) as client:
        if limit:
            _check_limit(client, seconds)
            return
        result = checks.check(client, seconds)
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    else:
        console.print(check_table(result))
        console.print(checks.summary(result))
    if not result.is_exact:
        raise typer.Exit(FAILED)


@app.command()
def draw(
    file: Annotated[Path, typer.Argument(help="The PNG to write.")] = Path("lab.png"),
    spec: Annotated[
        str | None, typer.Option("--topology", help="Of this, instead of a running lab.")
    ] = None,
    rate: Annotated[str, typer.Option(help="With --topology.")] = "unlimited",
    name: Name = None,
) -> None:
    """Write a picture of the topology. Needs matplotlib."""
    with _errors():
        if spec is not None:
            graph = build(spec, shapes_of(rate))
        else:
            with Client(_name(name)) as client:
                graph = client.graph()
        draw_graph(graph, file)
    console.print(f"{file}: {graph.graph['spec']}")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the labs of this user."""
    labs = []
    for name in wire.names_in_use():
        try:
            labs.append(facts(name))
        except LabError as error:
            console.print(f"{name}: {error}", style="yellow")
    if as_json:
        print(json.dumps(labs, indent=2))
        return
    table = Table("name", "topology", "hosts", "links", "holder", "in a user namespace")
    for lab in labs:
        rootless = "yes" if lab["user_namespace"] else "no"
        counts = str(lab["hosts"]), str(lab["links"]), str(lab["pid"])
        table.add_row(lab["name"], lab["topology"], *counts, rootless)
    console.print(table if labs else "no labs")


@app.command()
def down(
    everything: Annotated[bool, typer.Option("--all", help="Every lab of this user.")] = False,
    name: Name = None,
) -> None:
    """Take a lab down, with everything that runs in it."""
    failed = False
    with _errors():
        for lab in wire.names_in_use() if everything else [_name(name)]:
            try:
                with Client(lab) as client:
                    client.end_lab()
                console.print(f'lab "{lab}" is down')
            except LabError as error:
                print(f"dmlcomm lab: {error}", file=sys.stderr)
                failed = True
    if failed:
        raise typer.Exit(FAILED)


@contextmanager
def _errors() -> Iterator[None]:
    """A LabError is a line for the user and exit code 1."""
    try:
        yield
    except LabError as error:
        print(f"dmlcomm lab: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from error


def _name(name: str | None) -> str:
    """The lab that is meant: the given one, else the only one."""
    if name is not None:
        return name
    names = wire.names_in_use()
    if not names:
        raise LabError('there is no lab: start one with "dmlcomm lab up bcube:3,2 --rate 200mbit"')
    if len(names) > 1:
        raise LabError(f"there are several labs ({', '.join(names)}): choose one with --name")
    return names[0]


def _check_limit(client: Client, seconds: float) -> None:
    rate = checks.find_limit(client, seconds, lambda r: console.print(checks.summary(r)))
    if rate is None:
        console.print("This lab is not exact at its own rates on this machine.")
        raise typer.Exit(FAILED)
    console.print(f"All links together can be trusted up to {format_rate(rate)} on this machine.")
