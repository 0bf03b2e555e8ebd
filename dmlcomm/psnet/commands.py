"""``dmlcomm psnet``: the command line."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from dmlcomm import _shell
from dmlcomm.errors import LabError
from dmlcomm.planning.sizes import parse_size
from dmlcomm.psnet.controllers import (
    CircuitController,
    NetworkController,
    Routes,
    TopologyController,
)
from dmlcomm.psnet.wire import Listener, Message, ask
from dmlcomm.topology.shape import parse_delay_us

name_option = click.option("--name", "-n", default="lab", help="Of the lab.")
listen_option = click.option("--listen", required=True, help="Path of the socket.")
# Circuits are dark for up to ten seconds, and each worker of a large lab is asked for its table.
PLACE_TIMEOUT_S = 600.0


@click.group("psnet", cls=_shell.Group)
def app() -> None:
    """The control plane of PSNet in a lab: three controllers, and jobs for them."""


@app.command()
@listen_option
@name_option
def circuits(listen: str, name: str) -> None:
    """Run the circuit controller: it moves the circuits of the lab."""
    _serve(listen, CircuitController(name, _log("circuit controller")).answer)


@app.command()
@listen_option
@name_option
def network(listen: str, name: str) -> None:
    """Run the network controller: it computes paths, and compares them with the hosts' tables."""
    _serve(listen, NetworkController(name, _routes_of(name), _log("network controller")).answer)


@app.command("topology")
@listen_option
@click.option("--circuits", required=True, help="Socket of the circuit controller.")
@click.option("--network", required=True, help="Socket of the network controller.")
@click.option("--dark", default="50ms", help="How long moved circuits lead nowhere.")
@name_option
def topology_(listen: str, circuits: str, network: str, dark: str, name: str) -> None:
    """Run the topology controller, which takes jobs."""
    try:
        dark_s = parse_delay_us(dark) / 1e6
    except LabError as error:
        _shell.fail(error)
    log = _log("topology controller")
    _serve(listen, TopologyController(name, circuits, network, dark_s, log).answer)


@app.command()
@click.option("--controller", required=True, help="Socket of the topology controller.")
@click.option("--size", default="0", help="Of the model, as 100MB.")
@click.option("--compute", default="0s", help="Of a worker in a batch, as 120ms.")
@click.option("--worker", multiple=True, help="A worker of the job; default all of the lab.")
@click.option("--server", multiple=True, help="A server of the job; default all of the lab.")
@click.option("--timeout", default=PLACE_TIMEOUT_S, help="Seconds until it gives up.")
def place(
    controller: str,
    size: str,
    compute: str,
    worker: tuple[str, ...],
    server: tuple[str, ...],
    timeout: float,
) -> None:
    """Be the scheduler: give a job to the topology controller, and wait until it may start."""
    job: Message = {"workers": list(worker), "servers": list(server)}
    try:
        job["model_bytes"] = parse_size(size)
        job["compute_s"] = parse_delay_us(compute) / 1e6
        told = ask(controller, job, time.monotonic() + timeout)
    except (ValueError, LabError) as error:
        _shell.fail(error)
    print(json.dumps(told))


def _serve(path: str, answer: Callable[[Message], Message]) -> None:
    """Until SIGTERM or SIGINT, which take the socket away."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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


def _routes_of(lab: str) -> Routes:
    """Asks all workers at once: each has a file with the questions for its kernel."""

    def routes(
        addresses: Mapping[str, Sequence[str]], deadline_s: float
    ) -> Mapping[tuple[str, str], str]:
        with tempfile.TemporaryDirectory() as folder:
            for worker, wanted in addresses.items():
                questions = [f"route get {address}\n" for address in wanted]
                Path(folder, worker).write_text("".join(questions))
            command = [sys.executable, "-m", "dmlcomm", "lab", "run", "--name", lab]
            command += ["--on", ",".join(addresses), "--"]
            ask = f'ip -o -force -batch {folder}/$(hostname) | sed "s/^/$(hostname) /"'
            command += ["bash", "-c", ask]
            found = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=max(0.001, deadline_s - time.monotonic()),
            )
        # "[2] worker2 10.1.1.201 dev eth0 src ..."
        lines = re.findall(r"^\[\d+\] (\S+) (\S+) .*?dev (\S+)", found.stdout, re.MULTILINE)
        return {(worker, address): interface for worker, address, interface in lines}

    return routes
