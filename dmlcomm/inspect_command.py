"""``dmlcomm inspect`` and ``dmlcomm top``: what ranks do, asked from outside, while they hang."""

import json
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from dmlcomm._shell import FAILED, console, fail, json_option, new_table
from dmlcomm.inspection import (
    State,
    ask_all,
    behind_of,
    findings,
    jobs_of,
    metrics,
    name_of_server,
)
from dmlcomm.units import format_rate, format_time

if TYPE_CHECKING:
    from http.server import HTTPServer

    from rich.console import Group
    from rich.table import Table

job_argument = click.argument("job", default="")

# Bytes sent and received by process, group and rail, and when they were read.
Reading = tuple[float, dict[tuple[int, str, str], tuple[int, int]]]

# Columns for what its rank has measured of a rail, and has agreed on with the others.
LEARNED = ("rate", "rate in use", "round trip", "trip in use", "message")
# Columns for what has happened to a rail, and where its state has them.
EVENTS = {"repeated": "frames_repeated", "lost": "lanes_lost", "back": "lanes_back"}


@click.command()
@job_argument
@json_option
@click.option(
    "--prometheus",
    "as_metrics",
    is_flag=True,
    help="Print metrics, for node-exporter's textfiles.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve these metrics to Prometheus under /metrics until ^C; 0: any free port.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    help="Address at which they are served, to everybody who reaches it.",
)
def inspect(
    job: str, as_json: bool, as_metrics: bool, metrics_port: int | None, metrics_host: str
) -> None:
    """Show the operations in flight of a job's ranks on this host, who waits for whom, and rails.

    Its parameter servers on this host show their clocks, and who is behind. Processes answer also
    while their Python hangs. Only jobs of the same user can be asked. The exit code is 1 when there
    is no such job.

    JOB is the beginning of its number; default: all of this host.
    """
    if sum((as_json, as_metrics, metrics_port is not None)) > 1:
        fail(ValueError("--json, --prometheus and --metrics-port: expected one of them"))
    if metrics_port is not None:
        return _serve_metrics(job, metrics_host, metrics_port)
    jobs = _ask_or_fail(job)
    if as_metrics:
        print(_metrics_of(jobs), end="", flush=True)
        return
    if as_json:
        print(_json_of(jobs), flush=True)
    else:
        console(highlight=False).print(_view(jobs, (0.0, {})))
    if not jobs:
        raise Exit(FAILED)


@click.command()
@job_argument
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=1.0,
    help="Seconds from one look to the next.",
)
@json_option
def top(job: str, interval_s: float, as_json: bool) -> None:
    """Show the same again and again, with the rates of rails, until ^C.

    With --json each look is a line, with the counters of rails.

    JOB is the beginning of its number; default: all of this host.
    """
    from rich.live import Live

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if as_json:
        with suppress(KeyboardInterrupt):
            while True:
                print(_json_of(_ask_or_fail(job)), flush=True)
                time.sleep(interval_s)
        return
    before: Reading = (0.0, {})
    with suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            jobs = _ask_or_fail(job)
            live.update(_view(jobs, before), refresh=True)
            before = _reading(jobs)
            time.sleep(interval_s)


def _json_of(jobs: dict[str, list[State]]) -> str:
    listed = [
        {
            "job": name,
            "findings": findings(own),
            "processes": [{k: v for k, v in state.items() if k != "metrics"} for state in own],
        }
        for name, own in sorted(jobs.items())
    ]
    return json.dumps({"jobs": listed})


def _metrics_of(jobs: dict[str, list[State]]) -> str:
    return metrics(state for own in jobs.values() for state in own)


def metrics_server(job: str, host: str, port: int) -> "HTTPServer":
    """Every request asks the ranks anew: jobs may begin and end meanwhile. Raises OSError."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                return self.send_error(404, "the metrics are under /metrics")
            try:
                body = _metrics_of(_ask(job)).encode()
            except OSError as error:
                return self.send_error(500, explain=str(error))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: a line for each request tells nobody anything."""

    return ThreadingHTTPServer((host, port), Handler)


def _serve_metrics(job: str, host: str, port: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        server = metrics_server(job, host, port)
    except OSError as error:
        fail(OSError(f"no metrics at {host}:{port}: {error.strerror or error}"))
    with server, suppress(KeyboardInterrupt):
        print(f"dmlcomm inspect: metrics at port {server.server_port}", flush=True)
        server.serve_forever()


def _ask(job: str) -> dict[str, list[State]]:
    """Raises OSError."""
    return {name: own for name, own in jobs_of(ask_all()).items() if name.startswith(job)}


def _ask_or_fail(job: str) -> dict[str, list[State]]:
    try:
        return _ask(job)
    except OSError as error:
        fail(error)


def _reading(jobs: dict[str, list[State]]) -> Reading:
    counts = {
        (state["pid"], group["name"], rail["interface"]): (
            rail["bytes_sent"],
            rail["bytes_received"],
        )
        for own in jobs.values()
        for state in own
        for group in state["groups"]
        for rail in group["rails"]
    }
    return time.monotonic(), counts


def _view(jobs: dict[str, list[State]], before: Reading) -> "Group":
    """Rates of rails where there was a reading before, else bytes."""
    from rich.console import Group

    if not jobs:
        return Group("no such job of this user runs on this host")
    parts: list[object] = []
    now, counts = _reading(jobs)
    unit = "bytes" if not before[1] else "MB/s"
    for name, states in sorted(jobs.items()):
        groups = new_table(
            f"job {name}", "pid", "group", "rank", "in flight", "oldest", "waits for"
        )
        columns = (f"sent, {unit}", f"received, {unit}", *LEARNED, "urgent wait")
        rails = new_table("rails", "pid", "group", "rail", *columns, *EVENTS)
        for state in states:
            for group in state["groups"]:
                place = (str(state["pid"]), group["name"])
                oldest = group["operations"][0] if group["operations"] else None
                groups.add_row(
                    *place,
                    f"{group['rank']} of {group['num_ranks']}",
                    str(group["num_operations"]),
                    oldest["operation"] if oldest else f"after {group['last_begun'] or 'nothing'}",
                    ", ".join(map(str, oldest["waits_for"])) if oldest else "",
                )
                for rail in group["rails"]:
                    key = (state["pid"], group["name"], rail["interface"])
                    shown = _shown(counts[key], before[1].get(key), now - before[0])
                    events = (str(rail[event]) for event in EVENTS.values())
                    learned = (*_learned(rail), _urgent_wait(rail))
                    rails.add_row(*place, rail["interface"], *shown, *learned, *events)
        tables = [groups, rails, _servers_of(states)]
        parts += [*(table for table in tables if table.row_count), *findings(states)]
    return Group(*parts)  # type: ignore[arg-type]


def _servers_of(states: list[State]) -> "Table":
    table = new_table(
        "parameter servers", "pid", "server", "model", "clock", "workers (clock)", "behind"
    )
    for state in states:
        for server in state["servers"]:
            place = (str(state["pid"]), name_of_server(server))
            if not server["models"]:
                table.add_row(*place, "none yet", "", "", "")
            for model in server["models"]:
                clocks = model["clocks"]
                workers = ", ".join(f"{worker} ({clock})" for worker, clock in clocks.items())
                behind = ", ".join(behind_of(model))
                table.add_row(*place, model["name"], str(model["clock"]), workers, behind)
    return table


def _learned(rail: State) -> tuple[str, ...]:
    """`LEARNED`; empty where that is not known."""
    rates = (rail["bits_per_second"], rail["agreed_bits_per_second"])
    times_us = (rail["round_trip_us"], rail["agreed_round_trip_us"], rail["agreed_message_us"])
    return (
        *(format_rate(rate) if rate else "" for rate in rates),
        *(format_time(time_us * 1e-6) if time_us else "" for time_us in times_us),
    )


def _urgent_wait(rail: State) -> str:
    """The mean and the longest wait of urgent operations, and the longest one that follows for what
    the kernel has; empty where there was none."""
    if not rail["urgent_waits"]:
        return ""
    mean_us = rail["urgent_wait_us"] / rail["urgent_waits"]
    times_us = (mean_us, rail["longest_urgent_wait_us"], rail["blocking_us"])
    mean, longest, blocking = (format_time(us * 1e-6) for us in times_us)
    shown = f"{mean}, {longest} at most"
    return f"{shown}; kernel {blocking}" if rail["blocking_us"] else shown


def _shown(now: tuple[int, int], before: tuple[int, int] | None, seconds: float) -> list[str]:
    if before is None:
        return [str(count) for count in now]
    return [
        f"{max(0, new - old) / seconds / 1e6:.1f}" for new, old in zip(now, before, strict=True)
    ]
