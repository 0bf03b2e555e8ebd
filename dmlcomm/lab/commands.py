"""``dmlcomm lab``: the command line of the lab."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from click.exceptions import Exit
from rich.table import Table

from dmlcomm._shell import FAILED, PATH, Group, command_argument, json_option
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

DEFAULT_NAME = "lab"

name_option = click.option("--name", "-n", help="Which lab, where there are several.")


@click.group("lab", cls=Group)
def app() -> None:
    """An emulated cluster with several NICs per host, on this machine."""


@app.command()
@click.argument("spec", metavar="TOPOLOGY")
@click.option(
    "--rate", default="unlimited", help="Of every link, as 200mbit; or a comma list, one per level."
)
@click.option("--delay", default="0", help="One-way delay of every link, as 1ms.")
@click.option("--loss", default="0%", help="Packets that every link loses, as 1%.")
@click.option("--mtu", default=Options().mtu, help="Bytes of an IP packet on data NICs.")
@click.option(
    "--congestion",
    default="cubic",
    help="TCP congestion control between hosts; empty: the machine's.",
)
@click.option(
    "--forwarding/--no-forwarding",
    default=True,
    help="Hosts forward packets of others, with routes through them.",
)
@click.option("--name", "-n", default=DEFAULT_NAME, help="Name of the lab.")
def up(
    spec: str,
    rate: str,
    delay: str,
    loss: str,
    mtu: int,
    congestion: str,
    forwarding: bool,
    name: str,
) -> None:
    """Build a lab. It stays until `dmlcomm lab down`, and needs root or user namespaces.

    TOPOLOGY is flat:N,k (hosts, NICs), bcube:n,k, grid:AxBx..., fattree:p[,r=R][,hosts=H],
    clos:PxExH,AxC[,r=RxS], psnet:P,W,R[,K=x][@i,j,...][+...] (servers, workers, NICs of a server),
    sip:PxTxN (pods, ToRs, servers).
    """
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
@command_argument
@click.option(
    "--ranks-per-host",
    "-m",
    type=click.IntRange(min=1),
    default=1,
    help="Processes on every host.",
)
@click.option("--torchrun", is_flag=True, help="Start torchrun on every host: -- train.py ...")
@click.option(
    "--gloo-nics",
    type=click.IntRange(min=0),
    default=1,
    help="How many data NICs gloo is given; 0 is all.",
)
@click.option("--env", "-e", multiple=True, help="NAME=VALUE for every rank.")
@click.option(
    "--on",
    default="*",
    help="The hosts that take part, as 'worker*' or host0,host3; ranks count through them.",
)
@click.option(
    "--linger",
    type=click.FloatRange(min=0),
    default=1.0,
    help="Seconds for the other ranks after the first failure.",
)
@name_option
def run(
    command: tuple[str, ...],
    ranks_per_host: int,
    torchrun: bool,
    gloo_nics: int,
    env: tuple[str, ...],
    on: str,
    linger: float,
    name: str | None,
) -> None:
    """Run a command as the ranks of a job, with torchrun's environment, on all hosts.

    Output has the rank in front. Signals are passed on. The exit code is that of the first process
    that fails; the others are stopped then.

    COMMAND is the command, after --.
    """
    with _errors(), Client(_name(name)) as client:
        settings = launch.RunSettings(
            ranks_per_host=ranks_per_host,
            torchrun=torchrun,
            gloo_interfaces=gloo_nics,
            linger_s=linger,
            on=on,
            extra=parse_assignments(env),
        )
        code = launch.run(client, command, settings)
    raise Exit(code)


@app.command("exec")
@click.argument("node")
@command_argument
@name_option
def exec_(node: str, command: tuple[str, ...], name: str | None) -> None:
    """Run one command on one node, with this terminal.

    NODE is host3, switch0.1, ...; COMMAND is the command, after --.
    """
    with _errors(), Client(_name(name)) as client:
        code = launch.run_one(client, node, command)
    raise Exit(code)


@app.command("set")
@click.argument("place")
@click.argument("changes", nargs=-1, required=True)
@name_option
def set_(place: str, changes: tuple[str, ...], name: str | None) -> None:
    """Change a link, in both directions, also while a job runs. "down" pulls the cable.

    "out" and "in" are the rates of what that interface sends and receives.

    "tor=2" and "agg=1" move a circuit, as `dmlcomm lab circuit` does.

    PLACE is as host3:eth1; CHANGES are down, up, rate=50mbit, out=50mbit, in=50mbit, mtu=1500,
    delay=1ms, loss=1%, tor=2.
    """
    with _errors(), Client(_name(name)) as client:
        client.ask("set", place=place, changes=changes)


@app.command()
@click.argument("moves", nargs=-1, required=True)
@click.option("--dark", default="0", help="How long they lead nowhere, as 50ms.")
@name_option
def circuit(moves: tuple[str, ...], dark: str, name: str | None) -> None:
    """Move circuits together, also while a job runs: connections survive.

    Those of workers of a psnet and of hosts of a sip lead to ToRs, those of ToRs of a sip to
    aggregation switches.

    MOVES are as worker3=tor1, host8=tor2, tor3=agg1.
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
@click.argument("interface")
@click.option("--rate", required=True, help="Of every host, as 100mbit.")
@name_option
def load_(interface: str, rate: str, name: str | None) -> None:
    """Load one NIC of all hosts with background traffic that does not give way, until Ctrl-C.

    Every host sends to the next one at the same switch. The rate counts whole frames.

    INTERFACE is as eth1.
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
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    help="Seconds between readings.",
)
@click.option("--once", is_flag=True, help="Print one table and end.")
@json_option
@name_option
def status(interval: float, once: bool, as_json: bool, name: str | None) -> None:
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
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.5),
    default=3.0,
    help="How long the links are loaded.",
)
@click.option("--limit", is_flag=True, help="Double the rates until the lab is not exact any more.")
@json_option
@name_option
def check(seconds: float, limit: bool, as_json: bool, name: str | None) -> None:
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
        raise Exit(FAILED)


@app.command()
@click.argument("file", type=PATH, default="lab.png")
@click.option("--topology", "spec", help="Of this, instead of a running lab.")
@click.option("--rate", default="unlimited", help="With --topology.")
@name_option
def draw(file: Path, spec: str | None, rate: str, name: str | None) -> None:
    """Write a picture of the topology. Needs matplotlib.

    FILE is the PNG to write; default: lab.png.
    """
    with _errors():
        if spec is not None:
            graph = build(spec, shapes_of(rate))
        else:
            with Client(_name(name)) as client:
                graph = client.graph()
        draw_graph(graph, file)
    console.print(f"{file}: {graph.graph['spec']}")


@app.command("list")
@json_option
def list_(as_json: bool) -> None:
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
@click.option("--all", "everything", is_flag=True, help="Every lab of this user.")
@name_option
def down(everything: bool, name: str | None) -> None:
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
        raise Exit(FAILED)


@contextmanager
def _errors() -> Iterator[None]:
    """A LabError is a line for the user and exit code 1."""
    try:
        yield
    except LabError as error:
        print(f"dmlcomm lab: {error}", file=sys.stderr)
        raise Exit(FAILED) from error


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
        raise Exit(FAILED)
    console.print(f"All links together can be trusted up to {format_rate(rate)} on this machine.")
