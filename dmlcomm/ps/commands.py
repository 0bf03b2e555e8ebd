"""``dmlcomm ps``: the command line of the parameter server.

Each command imports its own modules: a server listens a fraction of a second after its start.
"""

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from dmlcomm._shell import (
    FAILED,
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
    from dmlcomm.ps.tls import Tls

WATCH_INTERVAL_S = 1.0

token_option = click.option("--token", help="Of the job; default: DMLCOMM_PS_TOKEN.")
token_file_option = click.option(
    "--token-file", type=PATH, help="Holds the token, which other users see on no command line."
)
tls_cert_option = click.option("--tls-cert", type=PATH, help="Own certificate (PEM).")
tls_key_option = click.option("--tls-key", type=PATH, help="Its private key.")
tls_ca_option = click.option(
    "--tls-ca",
    type=PATH,
    help="Whose signatures count; on a server: demands certificates of workers.",
)
replicas_option = click.option(
    "--replicas", default=0, help="1: a copy of every shard on the next server."
)
checkpoint_option = click.option("--checkpoint", type=PATH, help="Directory of checkpoints.")
checkpoint_every_option = click.option(
    "--checkpoint-every", default=100, help="Clocks from one to the next."
)
rule_option = click.option("--rule", help="MODULE:FUNCTION, for models with rule python.")


@click.group("ps", cls=Group)
def app() -> None:
    """The parameter server: start one, or look how it is doing."""


@app.command()
@click.option(
    "--listen",
    default="127.0.0.1:0",
    help="HOST:PORT of the control plane; port 0 takes a free one.",
)
@click.option("--workers", default=1, help="Workers that training waits for.")
@click.option(
    "--servers", default="1", help="How many servers the job has, or their addresses in order."
)
@click.option(
    "--index",
    type=int,
    help="Which of them this is; default: the one with the address of --listen.",
)
@click.option(
    "--plan",
    default="",
    show_default=False,
    help="A plan file, which says how many servers there are, and on which hosts.",
)
@click.option(
    "--host",
    type=int,
    help="Of --plan, the number of this host; without a server there it ends.",
)
@replicas_option
@token_option
@token_file_option
@transport_option
@checkpoint_option
@checkpoint_every_option
@click.option(
    "--allow-mixed-clocks",
    is_flag=True,
    help="Continue from the newest checkpoint of each server, not from the newest of all.",
)
@click.option(
    "--rejoin-timeout",
    default=60.0,
    help="Seconds that workers of a checkpoint may take to come after the first.",
)
@click.option(
    "--return-timeout",
    default=15.0,
    help="Seconds that a worker whose proxy was lost may take to come another way.",
)
@click.option("--window-mb", type=float, help="MB per model for clocks that are not complete.")
@click.option("--metrics-port", type=int, help="Of the Prometheus endpoint; 0 takes a free one.")
@rule_option
@tls_cert_option
@tls_key_option
@tls_ca_option
@click.option("--insecure", is_flag=True, help="Listen beyond loopback though anybody may join.")
@log_level_option
@until_eof_option
def serve(
    listen: str,
    workers: int,
    servers: str,
    index: int | None,
    plan: str,
    host: int | None,
    replicas: int,
    token: str | None,
    token_file: Path | None,
    transport: str,
    checkpoint: Path | None,
    checkpoint_every: int,
    allow_mixed_clocks: bool,
    rejoin_timeout: float,
    return_timeout: float,
    window_mb: float | None,
    metrics_port: int | None,
    rule: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    insecure: bool,
    log_level: str,
    until_eof: bool,
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
@click.argument("addresses", nargs=-1)
@json_option
@click.option("--watch", is_flag=True, help="Again every second, until ^C.")
@token_option
@token_file_option
@tls_cert_option
@tls_key_option
@tls_ca_option
def status(
    addresses: tuple[str, ...],
    as_json: bool,
    watch: bool,
    token: str | None,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
) -> None:
    """Show servers, workers, clocks, shards, bytes and rates.

    The exit code is 1 when a server does not answer.

    ADDRESSES are those of the servers; default: DMLCOMM_PS_SERVERS.
    """
    from dmlcomm import _core
    from dmlcomm.ps import status_view
    from dmlcomm.ps.protocol import parse_servers
    from dmlcomm.ps.worker.control import Control

    try:
        config = _core.config()
        given = ",".join(addresses) or str(config["ps_servers"])
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
        raise Exit(FAILED)


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
