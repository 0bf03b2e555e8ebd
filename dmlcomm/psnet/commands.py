"""``dmlcomm psnet``: the command line."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from dmlcomm import _shell
from dmlcomm.errors import LabError
from dmlcomm.planning.sizes import parse_size
from dmlcomm.psnet.controllers import CircuitController, NetworkController, TopologyController
from dmlcomm.psnet.wire import Listener, Message, ask
from dmlcomm.topology.shape import parse_delay_us

app = _shell.application(
    help="The control plane of PSNet in a lab: three controllers, and jobs for them."
)

Name = Annotated[str, typer.Option("--name", "-n", help="Of the lab.")]
Listen = Annotated[str, typer.Option(help="Path of the socket.", show_default=False)]
ROUTE_TIMEOUT_S = 30


@app.command()
def circuits(listen: Listen, name: Name = "lab") -> None:
    """Run the circuit controller: it moves the circuits of the lab."""
    _serve(listen, CircuitController(name, _log("circuit controller")).answer)


@app.command()
def network(listen: Listen, name: Name = "lab") -> None:
    """Run the network controller: it computes paths, and compares them with the hosts' tables."""
    routes = _routes(name)
    _serve(listen, NetworkController(name, routes, _log("network controller")).answer)


@app.command("topology")
def topology_(
    listen: Listen,
    circuits: Annotated[str, typer.Option(help="Socket of the circuit controller.")],
    network: Annotated[str, typer.Option(help="Socket of the network controller.")],
    dark: Annotated[str, typer.Option(help="How long moved circuits lead nowhere.")] = "50ms",
    name: Name = "lab",
) -> None:
    """Run the topology controller, which takes jobs."""
    try:
        dark_s = parse_delay_us(dark) / 1e6
    except LabError as error:
        _shell.fail(error)
    log = _log("topology controller")
    _serve(listen, TopologyController(name, circuits, network, dark_s, log).answer)


@app.command()
def place(
    controller: Annotated[str, typer.Option(help="Socket of the topology controller.")],
    size: Annotated[str, typer.Option(help="Of the model, as 100MB.")] = "0",
    worker: Annotated[
        list[str] | None, typer.Option(help="A worker of the job; default all of the lab.")
    ] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="A server of the job; default all of the lab.")
    ] = None,
) -> None:
    """Be the scheduler: give a job to the topology controller, and wait until it may start."""
    job = {"workers": worker or [], "servers": server or []}
    try:
        told = ask(controller, job | {"model_bytes": parse_size(size)})
    except (ValueError, LabError) as error:
        _shell.fail(error)
    print(json.dumps(told))


def _serve(path: str, answer: Callable[[Message], Message]) -> None:
    try:
        with Listener(path) as listener:
            print(f"dmlcomm psnet: listens at {path}", flush=True)
            listener.serve(answer)
    except LabError as error:
        _shell.fail(error)
    except KeyboardInterrupt:
        return


def _log(who: str) -> Callable[[str], None]:
    def say(line: str) -> None:
        print(f"{time.time():.3f} {who}: {line}", flush=True)

    return say


def _routes(lab: str) -> Callable[[str, str], str]:
    def route(host: str, address: str) -> str:
        command = [sys.executable, "-m", "dmlcomm", "lab", "exec", "--name", lab, host, "--"]
        found = subprocess.run(
            [*command, "ip", "-o", "route", "get", address],
            capture_output=True,
            text=True,
            timeout=ROUTE_TIMEOUT_S,
        )
        match = re.search(r" dev (\S+)", found.stdout)
        return match[1] if match else ""

    return route
