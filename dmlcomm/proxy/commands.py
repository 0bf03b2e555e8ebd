"""``dmlcomm proxy``: the command line of the local proxy."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dmlcomm._shell import (
    PATH,
    Group,
    StopSignals,
    end,
    fail,
    json_option,
    log_level_option,
    transport_option,
    until_eof_option,
)

if TYPE_CHECKING:
    from dmlcomm.ps.tree import Prices

STATUS_TIMEOUT_S = 10.0
WATCH_INTERVAL_S = 1.0

socket_option = click.option("--socket", help="Path; default: where DMLCOMM_PROXY=auto looks.")
tree_option = click.option(
    "--tree",
    default="auto",
    help="auto, flat, binary, rack, rack-binary or chain; one for all of a job.",
)
# What auto chooses by.
oversubscription_option = click.option(
    "--oversubscription", default=1.0, help="Rates of a rack's hosts over that of its uplink."
)
latency_us_option = click.option(
    "--latency-us",
    default=0.0,
    help="us of a piece from host to host, beside its bytes; 0: 200.",
)
RATE_GBIT_HELP = "Gbit/s of a host's NICs; 0: as their drivers say, or 10."
SHARD_MB_HELP = "MB of a model per server; 0: of the largest that is there."


@click.group("proxy", cls=Group)
def app() -> None:
    """The local proxy of the parameter server: start one, or look at it."""


@app.command()
@socket_option
@tree_option
@click.option("--rack", default="", show_default=False, help="Name of the switch of this host.")
@click.option(
    "--plan", default="", show_default=False, help="A plan file that has --tree and --rack."
)
@click.option("--host", type=int, help="This host's number in --plan.")
@click.option("--rate-gbit", default=0.0, help=RATE_GBIT_HELP)
@click.option("--shard-mb", default=0.0, help=SHARD_MB_HELP)
@oversubscription_option
@latency_us_option
@click.option(
    "--user",
    "users",
    type=int,
    multiple=True,
    help="Number of a user who may attach, too; as often as needed.",
)
@transport_option
@click.option("--insecure", is_flag=True, help="Carry jobs without a token, too.")
@click.option(
    "--sharing",
    default="strict",
    help="Of NICs by jobs: strict or weighted, by their priorities.",
)
@click.option(
    "--floor",
    default=0.05,
    help="Least part of a NIC of the jobs that do not go first, together.",
)
@click.option("--max-jobs", default=0, help="Jobs that may send from this host; 0 is any number.")
@click.option(
    "--when-full",
    default="refuse",
    help="refuse a job, or let it preempt one of a later priority.",
)
@click.option(
    "--classes",
    default=0,
    help="Of priorities that the fabric tells apart by DSCP; 0: none.",
)
@click.option(
    "--metrics",
    default="",
    show_default=False,
    help="HOST:PORT of the Prometheus endpoint; port 0 takes a free one.",
)
@log_level_option
@until_eof_option
def serve(
    socket: str | None,
    tree: str,
    rack: str,
    plan: str,
    host: int | None,
    rate_gbit: float,
    shard_mb: float,
    oversubscription: float,
    latency_us: float,
    users: tuple[int, ...],
    transport: str,
    insecure: bool,
    sharing: str,
    floor: float,
    max_jobs: int,
    when_full: str,
    classes: int,
    metrics: str,
    log_level: str,
    until_eof: bool,
) -> None:
    """Run the proxy of this host until SIGTERM or SIGINT. Prints one line when it listens."""
    stop = StopSignals()
    if until_eof:
        stop.also_when_stdin_ends()
    from dmlcomm import _core
    from dmlcomm.log import set_level
    from dmlcomm.proxy.proxy import Proxy, ProxyOptions
    from dmlcomm.proxy.seats import SeatOptions

    try:
        set_level(log_level)
        if plan:
            tree, rack = _of_plan(plan, host)
        options = ProxyOptions(
            socket=socket or _own_default(),
            shape=tree,
            rack=rack,
            users=users,
            transport=transport or str(_core.config()["transport"]),
            insecure=insecure,
            metrics=metrics,
            prices=_prices(rate_gbit, shard_mb, oversubscription, latency_us),
            seats=SeatOptions(sharing, floor, max_jobs, when_full, classes),
        )
        with Proxy(options) as proxy:
            where = f", metrics on {proxy.metrics}" if proxy.metrics else ""
            print(f"dmlcomm proxy: listens at {options.socket}{where}", flush=True)
            stop.wait()
    except (ValueError, OSError) as error:
        fail(error)
    end()


@app.command()
@socket_option
@json_option
@click.option("--watch/--no-watch", help="Again every second, until ^C.")
def status(socket: str | None, as_json: bool, watch: bool) -> None:
    """Show the jobs of this host: trees, edges and models, and how they share NICs."""
    with suppress(KeyboardInterrupt):
        _show(socket, as_json)
        while watch:
            time.sleep(WATCH_INTERVAL_S)
            _show(socket, as_json)


def _show(socket: str | None, as_json: bool) -> None:
    from dmlcomm.proxy import text

    answer = _ask(socket)
    print(json.dumps(answer) if as_json else "\n".join(text.status(answer)), flush=True)


@app.command()
@click.option("--hosts", type=click.IntRange(min=1), default=8, help="Hosts with a proxy.")
@tree_option
@click.option(
    "--racks", type=click.IntRange(min=1), default=1, help="Racks with equal numbers of hosts."
)
@oversubscription_option
@latency_us_option
@click.option("--shard-mb", default=8.0, help=SHARD_MB_HELP)
@click.option("--rate-gbit", default=10.0, help=RATE_GBIT_HELP)
@click.option(
    "--servers", type=click.IntRange(min=1), default=1, help="Each has a tree; the first is drawn."
)
@click.option("--running", is_flag=True, help="The trees that the proxy of this host is in.")
@socket_option
@click.option(
    "--picture",
    type=PATH,
    help="A PNG to write, of all shapes or running trees. Needs matplotlib.",
)
def draw(
    hosts: int,
    tree: str,
    racks: int,
    oversubscription: float,
    latency_us: float,
    shard_mb: float,
    rate_gbit: float,
    servers: int,
    running: bool,
    socket: str | None,
    picture: Path | None,
) -> None:
    """Draw a tree, and what each shape would cost by the model that `auto` uses.

    Or, with --running, the trees that there are: then --socket and --picture count alone.
    """
    try:
        if running:
            _draw_running(_ask(socket), picture)
            return
        names = [f"rack{i * racks // hosts}" for i in range(hosts)]
        prices = _prices(rate_gbit, shard_mb, oversubscription, latency_us)
        prices.check()
        _draw_planned(tree, names, prices, servers, picture)
    except (ValueError, OSError) as error:
        fail(error)


def _prices(
    rate_gbit: float, shard_mb: float, oversubscription: float, latency_us: float
) -> "Prices":
    from dmlcomm.ps.tree import Prices

    return Prices(rate_gbit * 1e9, shard_mb * 1e6, oversubscription, latency_us / 1e6)


def _draw_running(answer: dict[str, Any], picture: Path | None) -> None:
    from dmlcomm.proxy import text
    from dmlcomm.proxy.picture import draw, running

    if picture is not None:
        draw(picture, running(answer))
    print("\n".join(text.running_trees(answer)))


def _draw_planned(
    shape: str, racks: list[str], prices: "Prices", servers: int, picture: Path | None
) -> None:
    from dmlcomm.proxy import text
    from dmlcomm.proxy.picture import draw, planned
    from dmlcomm.ps import tree as trees

    cheapest = trees.choose(racks, prices, servers)
    shape = cheapest if shape == trees.AUTO else shape
    parents = trees.parents(shape, racks)
    if picture is not None:
        draw(picture, planned(racks, prices, servers))
    print("server", *text.branches(parents, "proxy {}".format), sep="\n")
    width = max(map(len, trees.SHAPES))
    for name in trees.SHAPES:
        seconds = trees.price(name, racks, prices, servers)
        chosen = "  <- drawn" if name == shape else ""
        print(f"{name:{width}} {seconds * 1000:9.2f} ms{chosen}")


def _of_plan(path: str, host: int | None) -> tuple[str, str]:
    """Tree and rack. Raises ValueError."""
    from dmlcomm.planning import plan_file

    if host is None:
        raise ValueError("--plan needs --host, the number of this host in the plan, from 0")
    plan = plan_file.load(path)
    if plan.tree == plan_file.DIRECT:
        raise ValueError(f"{path} has no tree of proxies: workers talk to the servers")
    return plan.tree, plan.rack_of(host)


def _own_default() -> str:
    import os

    from dmlcomm.network.proxy_socket import default_sockets

    system, own = default_sockets()
    return system if os.getuid() == 0 else own


def _ask(path: str | None) -> dict[str, Any]:
    import os

    from dmlcomm import errors
    from dmlcomm.network.proxy_socket import ask, default_sockets

    candidates = [path] if path else [p for p in default_sockets() if os.path.exists(p)]
    try:
        if not candidates:
            raise errors.PsConnectionError(
                f"no proxy listens at {' or '.join(default_sockets())}; start one (dmlcomm proxy "
                f"serve), or give its --socket"
            )
        return ask(candidates[0], {"status": True}, STATUS_TIMEOUT_S)
    except errors.PsError as error:
        fail(error)
