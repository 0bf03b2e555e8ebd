"""``dmlcomm proxy``: the command line of the local proxy."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmlcomm._shell import AsJson, StopSignals, application, end, fail

if TYPE_CHECKING:
    from dmlcomm.ps.tree import Prices

app = application(help="The local proxy of the parameter server: start one, or look at it.")

STATUS_TIMEOUT_S = 10.0
WATCH_INTERVAL_S = 1.0

Socket = Annotated[
    str | None,
    typer.Option(help="Path; default: where DMLCOMM_PROXY=auto looks.", show_default=False),
]

Tree = Annotated[
    str,
    typer.Option(help="auto, flat, binary, rack, rack-binary or chain; one for all of a job."),
]
# What auto chooses by.
RateGbit = Annotated[
    float, typer.Option(help="Gbit/s of a host's NICs; 0: as their drivers say, or 10.")
]
ShardMb = Annotated[
    float, typer.Option(help="MB of a model per server; 0: of the largest that is there.")
]
Oversubscription = Annotated[
    float, typer.Option(help="Rates of a rack's hosts over that of its uplink.")
]
LatencyUs = Annotated[
    float, typer.Option(help="us of a piece from host to host, beside its bytes; 0: 200.")
]


@app.command()
def serve(
    socket: Socket = None,
    tree: Tree = "auto",
    rack: Annotated[str, typer.Option(help="Name of the switch of this host.")] = "",
    plan: Annotated[str, typer.Option(help="A plan file that has --tree and --rack.")] = "",
    host: Annotated[int | None, typer.Option(help="This host's number in --plan.")] = None,
    rate_gbit: RateGbit = 0.0,
    shard_mb: ShardMb = 0.0,
    oversubscription: Oversubscription = 1.0,
    latency_us: LatencyUs = 0.0,
    user: Annotated[
        list[int] | None,
        typer.Option(help="Number of a user who may attach, too; as often as needed."),
    ] = None,
    transport: Annotated[str, typer.Option(help="auto, tcp or shm; default: as configured.")] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Carry jobs without a token, too.")
    ] = False,
    sharing: Annotated[
        str, typer.Option(help="Of NICs by jobs: strict or weighted, by their priorities.")
    ] = "strict",
    floor: Annotated[
        float, typer.Option(help="Least part of a NIC of the jobs that do not go first, together.")
    ] = 0.05,
    max_jobs: Annotated[
        int, typer.Option(help="Jobs that may send from this host; 0 is any number.")
    ] = 0,
    when_full: Annotated[
        str, typer.Option(help="refuse a job, or let it preempt one of a later priority.")
    ] = "refuse",
    classes: Annotated[
        int, typer.Option(help="Of priorities that the fabric tells apart by DSCP; 0: none.")
    ] = 0,
    metrics: Annotated[
        str, typer.Option(help="HOST:PORT of the Prometheus endpoint; port 0 takes a free one.")
    ] = "",
    log_level: Annotated[str, typer.Option(help="error, warning, info or debug.")] = "info",
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
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
            users=tuple(user or ()),
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
def status(
    socket: Socket = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option(help="Again every second, until ^C.")] = False,
) -> None:
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
def draw(
    hosts: Annotated[int, typer.Option(min=1, help="Hosts with a proxy.")] = 8,
    tree: Tree = "auto",
    racks: Annotated[int, typer.Option(min=1, help="Racks with equal numbers of hosts.")] = 1,
    oversubscription: Oversubscription = 1.0,
    latency_us: LatencyUs = 0.0,
    shard_mb: ShardMb = 8.0,
    rate_gbit: RateGbit = 10.0,
    servers: Annotated[int, typer.Option(min=1, help="Each has a tree; the first is drawn.")] = 1,
    running: Annotated[
        bool, typer.Option("--running", help="The trees that the proxy of this host is in.")
    ] = False,
    socket: Socket = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="A PNG to write, of all shapes or running trees. Needs matplotlib."),
    ] = None,
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
