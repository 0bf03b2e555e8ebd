"""``dmlcomm ps``: the command line of the parameter server.

Each command imports its own modules: a server listens a fraction of a second after its start.
"""

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmlcomm._shell import FAILED, AsJson, StopSignals, application, end, fail

if TYPE_CHECKING:
    from dmlcomm.ps.tls import Tls

app = application(help="The parameter server: start one, or look how it is doing.")

WATCH_INTERVAL_S = 1.0

Token = Annotated[
    str | None,
    typer.Option(help="Of the job; default: DMLCOMM_PS_TOKEN.", show_default=False),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="Holds the token, which other users see on no command line."),
]
TlsCert = Annotated[Path | None, typer.Option(help="Own certificate (PEM).", show_default=False)]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key.", show_default=False)]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="Whose signatures count; on a server: demands certificates of workers."),
]
Replicas = Annotated[int, typer.Option(help="1: a copy of every shard on the next server.")]
CheckpointFolder = Annotated[
    Path | None, typer.Option(help="Directory of checkpoints.", show_default=False)
]
CheckpointEvery = Annotated[int, typer.Option(help="Clocks from one to the next.")]
RejoinTimeout = Annotated[
    float,
    typer.Option(help="Seconds that workers of a checkpoint may take to come after the first."),
]
ReturnTimeout = Annotated[
    float,
    typer.Option(help="Seconds that a worker whose proxy was lost may take to come another way."),
]
AllowMixedClocks = Annotated[
    bool,
    typer.Option(
        "--allow-mixed-clocks",
        help="Continue from the newest checkpoint of each server, not from the newest of all.",
    ),
]
WindowMb = Annotated[
    float | None,
    typer.Option(help="MB per model for clocks that are not complete.", show_default=False),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen beyond loopback though anybody may join.")
]
Index = Annotated[
    int | None,
    typer.Option(help="Which of them this is; default: the one with the address of --listen."),
]
MetricsPort = Annotated[
    int | None, typer.Option(help="Of the Prometheus endpoint; 0 takes a free one.")
]
PlanPath = Annotated[
    str,
    typer.Option(help="A plan file, which says how many servers there are, and on which hosts."),
]
PlanHost = Annotated[
    int | None,
    typer.Option(help="Of --plan, the number of this host; without a server there it ends."),
]
RuleName = Annotated[str | None, typer.Option(help="MODULE:FUNCTION, for models with rule python.")]


@app.command()
def serve(
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the control plane; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    workers: Annotated[int, typer.Option(help="Workers that training waits for.")] = 1,
    servers: Annotated[
        str, typer.Option(help="How many servers the job has, or their addresses in order.")
    ] = "1",
    index: Index = None,
    plan: PlanPath = "",
    host: PlanHost = None,
    replicas: Replicas = 0,
    token: Token = None,
    token_file: TokenFile = None,
    transport: Annotated[str, typer.Option(help="auto, tcp or shm; default: as configured.")] = "",
    checkpoint: CheckpointFolder = None,
    checkpoint_every: CheckpointEvery = 100,
    allow_mixed_clocks: AllowMixedClocks = False,
    rejoin_timeout: RejoinTimeout = 60.0,
    return_timeout: ReturnTimeout = 15.0,
    window_mb: WindowMb = None,
    metrics_port: MetricsPort = None,
    rule: RuleName = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    insecure: Insecure = False,
    log_level: Annotated[str, typer.Option(help="error, warning, info or debug.")] = "info",
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Run one server until SIGTERM or SIGINT. Prints one line when it listens."""
    stop = StopSignals()  # first of all, for signals that come while the server starts
    if until_eof:
        stop.also_when_stdin_ends()
    from dmlcomm import _core, errors
    from dmlcomm.log import set_level
    from dmlcomm.ps.server.server import Server, ServerOptions

    try:
        set_level(log_level)
        config = _core.config()
        placed = _place_of_plan(plan, host) if plan else _place(servers, listen, index)
        if placed is None:
            print(f"dmlcomm ps: host {host} has no server in {plan}", flush=True)
            return
        num_servers, own_index = placed
        options = ServerOptions(
            *(listen, own_index, num_servers, _addresses(servers), workers),
            replicas=replicas,
            token=_token(token, token_file, str(config["ps_token"])),
            transport=transport or str(config["transport"]),
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            allow_mixed_clocks=allow_mixed_clocks,
            rejoin_timeout_s=rejoin_timeout,
            return_timeout_s=return_timeout,
            window_mb=window_mb,
            metrics_port=metrics_port,
            rule=rule,
            tls=_tls(tls_cert, tls_key, tls_ca),
            insecure=insecure,
        )
        with Server(options) as server:
            metrics = f", metrics on port {server.metrics_port}" if server.metrics_port else ""
            listens = f"listens on {server.address}{metrics}"
            print(f"dmlcomm ps: server {own_index} of {num_servers} {listens}", flush=True)
            stop.wait()
    except (ValueError, OSError, errors.PsError) as error:
        fail(error)
    end()


@app.command()
def status(
    addresses: Annotated[
        list[str] | None,
        typer.Argument(help="Of the servers; default: DMLCOMM_PS_SERVERS.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until ^C.")] = False,
    token: Token = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Show servers, workers, clocks, shards, bytes and rates.

    The exit code is 1 when a server does not answer.
    """
    from dmlcomm import _core
    from dmlcomm.ps import status_view
    from dmlcomm.ps.protocol import parse_servers
    from dmlcomm.ps.worker.control import Control

    try:
        config = _core.config()
        given = ",".join(addresses or []) or str(config["ps_servers"])
        if not given:
            raise ValueError("which servers? Give their addresses, or set DMLCOMM_PS_SERVERS")
        secret = _token(token, token_file, str(config["ps_token"]))
        tls = _tls(tls_cert, tls_key, tls_ca)
        servers = enumerate(parse_servers(given))
        controls = [Control(number, address, secret, tls) for number, address in servers]
    except (ValueError, OSError) as error:
        fail(error)
    if watch:
        _watch(controls, as_json)
        return
    answers = status_view.ask(controls)
    _show(answers, as_json)
    if any("error" in answer for answer in answers):
        raise typer.Exit(FAILED)


def _show(answers: list, as_json: bool) -> None:  # type: ignore[type-arg]
    import json

    from rich.console import Console

    from dmlcomm.ps.status_view import view

    if as_json:
        print(json.dumps({"servers": answers}), flush=True)
    else:
        Console().print(view(answers))


def _watch(controls: list, as_json: bool) -> None:  # type: ignore[type-arg]
    from rich.live import Live

    from dmlcomm.ps.status_view import ask, view

    is_over = False

    # An exception in the destruction of an object (gRPC's calls) is lost; the note is not.
    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, end)
    with suppress(KeyboardInterrupt):
        if as_json:
            while not is_over:
                _show(ask(controls), as_json)
                time.sleep(WATCH_INTERVAL_S)
            return
        with Live(view(ask(controls)), auto_refresh=False) as live:
            while not is_over:
                time.sleep(WATCH_INTERVAL_S)
                live.update(view(ask(controls)), refresh=True)


def _addresses(servers: str) -> tuple[str, ...]:
    """Empty if only their number is given."""
    from dmlcomm.ps.protocol import parse_servers

    return () if servers.isascii() and servers.isdigit() else tuple(parse_servers(servers))


def _place(servers: str, listen: str, index: int | None) -> tuple[int, int]:
    """(number of servers, which one this is). Raises ValueError."""
    from dmlcomm.ps.protocol import parse_address

    addresses = _addresses(servers)
    if not addresses:
        return int(servers), index or 0
    if index is None:
        if parse_address(listen) not in addresses:
            raise ValueError(f"--listen {listen} is not of --servers {servers}; say which: --index")
        index = addresses.index(parse_address(listen))
    return len(addresses), index


def _place_of_plan(path: str, host: int | None) -> tuple[int, int] | None:
    """As `_place`; None for a host without a server. Raises ValueError."""
    from dmlcomm.planning import plan_file

    if host is None:
        raise ValueError("--plan needs --host, the number of this host in the plan, from 0")
    plan = plan_file.load(path)
    index = plan.server_at(host)
    return None if index is None else (len(plan.servers), index)


def _token(token: str | None, file: Path | None, configured: str) -> str:
    """Raises ValueError, OSError."""
    if token is not None and file is not None:
        raise ValueError("--token and --token-file: give one of them")
    if file is None:
        return configured if token is None else token
    found = file.read_text().rstrip("\r\n")
    if not found:
        raise ValueError(f"--token-file {file} is empty")
    return found


def _tls(cert: Path | None, key: Path | None, ca: Path | None) -> "Tls | None":
    if cert is None and key is None and ca is None:
        return None
    from dmlcomm.ps.tls import Tls

    return Tls(cert, key, ca)
