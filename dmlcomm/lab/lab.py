"""`Lab`: a running lab, as Python sees it."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import networkx as nx

from dmlcomm.errors import LabError
from dmlcomm.lab import wire
from dmlcomm.lab.client import Client
from dmlcomm.lab.options import Options
from dmlcomm.lab.wire import Message, Reader
from dmlcomm.topology import graph as topology
from dmlcomm.topology.builders import build
from dmlcomm.topology.graph import Link
from dmlcomm.topology.shape import Shape, parse_delay_us, parse_link_rate, parse_loss

# Thousands of links are built within a minute; a holder that says nothing for so long hangs.
BUILD_TIMEOUT_S = 60.0

Progress = Callable[[str, int, int], None]

_numbers = itertools.count()


class Lab:
    """An emulated cluster that lives as long as the block, and no longer than this process.

        with Lab("flat:3,1", rate="200mbit") as lab:
            run = lab.run([sys.executable, "train.py"])

    Args:
        topology_or_spec: a text as in ``lab up`` ("bcube:3,2"), or a graph (see `graph`).
        rate, delay, loss: of every link of a spec, as texts ("200mbit", "1ms", "1%"). ``rate`` may
            be a comma list with one rate per level.
        name: of the lab; by default one that no other process uses.
        options: see `Options`.

    Raises:
        LabError: the lab cannot be built here; the text says what to change. The methods raise it
            when the lab has ended.
    """

    def __init__(
        self,
        topology_or_spec: str | nx.Graph,
        *,
        rate: str = "unlimited",
        delay: str = "0",
        loss: str = "0%",
        name: str | None = None,
        options: Options | None = None,
    ) -> None:
        if isinstance(topology_or_spec, str):
            self._graph = build(topology_or_spec, shapes_of(rate, delay, loss))
        else:
            self._graph = topology_or_spec
        self.name = name or f"lab-{os.getpid()}-{next(_numbers)}"
        self._options = options or Options()

    def __enter__(self) -> "Lab":
        start(self.name, self._graph, self._options, owner=os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """Ends the lab and every process in it. Does nothing if it has ended."""
        if self.name in wire.names_in_use():
            with Client(self.name) as client:
                client.end_lab()

    def graph(self) -> nx.Graph:
        """The topology with the present state of every link."""
        with Client(self.name) as client:
            return client.graph()

    def links(self) -> list[Link]:
        """All links with their present state."""
        return topology.links(self.graph())

    def set(self, place: str, *changes: str) -> None:
        """Changes a link, in both directions unless a change says otherwise, also while a job runs.

        Args:
            place: an interface at one of its ends, as "host3:eth1".
            changes: "down", "up", "rate=50mbit", "loss=1%", "delay=1ms", "mtu=1500"; "out=50mbit"
                and "in=50mbit" are rates of what ``place`` sends and receives; "tor=2" and "agg=1"
                move it to another switch, as `circuit` does.

        Raises:
            LabError: there is no such place, or a change is not legal.
        """
        with Client(self.name) as client:
            client.ask("set", place=place, changes=changes)

    def circuit(self, moves: Mapping[str, str], dark_s: float = 0.0) -> None:
        """Moves circuits of a psnet or sip together, while they are in use.

        Args:
            moves: place -> switch: {"host8": "tor2", "tor3": "agg1"}. A place is an interface
                ("host8:eth0"), or a node with one circuit.
            dark_s: seconds in which they lead nowhere, up to 10.

        Raises:
            LabError: a place has no circuit, or cannot be moved there; nothing has moved.
        """
        with Client(self.name) as client:
            client.move(moves, dark_s)

    @contextlib.contextmanager
    def load(self, interface: str, rate: str) -> Iterator[None]:
        """Background traffic while the block runs: every host sends at ``rate`` from ``interface``
        to the next one at the same switch. Raises LabError.
        """
        command = self._command("load", interface, "--rate", rate)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise LabError(f"no load of {rate} on {interface}: see the output above")
                yield
            finally:
                process.terminate()

    def popen(self, node: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process on a node. The result stands for it: signals and exit code pass.

        Args:
            node: a host, as "host3"; also a switch or router.
            command: program and arguments.
            options: of subprocess.Popen.
        """
        return subprocess.Popen(self._exec(node, command), **options)

    def exec(self, node: str, command: Sequence[str], **options: Any) -> Any:
        """Runs ``command`` on ``node``; ``options`` and result are those of subprocess.run."""
        return subprocess.run(self._exec(node, command), **options)

    def popen_run(
        self, command: Sequence[str], *arguments: str, **options: Any
    ) -> subprocess.Popen[Any]:
        """As `run` of ``command`` with ``arguments``; ``options`` are those of subprocess.Popen."""
        return subprocess.Popen(self._run(command, arguments), **options)

    def run(self, command: Sequence[str], *arguments: str, **options: Any) -> Any:
        """Runs a job: one rank per host, with torchrun's environment.

        Args:
            command: program and arguments of every rank.
            arguments: of ``dmlcomm lab run``, as "--ranks-per-host", "2".
            options: of subprocess.run, whose result this returns.

        Example:
            >>> lab.run([sys.executable, "train.py"], "--ranks-per-host", "2", check=True)
        """
        return subprocess.run(self._run(command, arguments), **options)

    def _exec(self, node: str, command: Sequence[str]) -> list[str]:
        return self._command("exec", node, "--", *command)

    def _run(self, command: Sequence[str], arguments: Sequence[str]) -> list[str]:
        return self._command("run", *arguments, "--", *command)

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", str(__package__), name, "--name", self.name, *arguments]


def shapes_of(rate: str, delay: str = "0", loss: str = "0%") -> list[Shape]:
    """One shape per rate of a comma list. Raises LabError."""
    delay_us, share = parse_delay_us(delay), parse_loss(loss)
    return [Shape(parse_link_rate(item), delay_us, share) for item in rate.split(",")]


def start(
    name: str,
    graph: nx.Graph,
    options: Options,
    owner: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Builds a lab. With ``owner`` it ends with that process, else it stays until it is taken down.

    Raises LabError; nothing is left then.
    """
    ours, theirs = socket.socketpair()
    request: Message = {
        "name": name,
        "graph": topology.to_json(graph),
        "options": asdict(options),
        "owner": owner,
    }
    with ours:
        with theirs:
            command = [sys.executable, "-m", "dmlcomm.lab.holder", str(theirs.fileno())]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        ours.settimeout(BUILD_TIMEOUT_S)
        try:
            wire.send(ours, request)
            _wait_until_ready(ours, progress)
        finally:
            process.wait()


def _wait_until_ready(control: socket.socket, progress: Progress | None) -> None:
    reader = Reader(control)
    while True:
        try:
            message = reader.wait_for_line()
        except OSError as error:
            raise LabError(f"the lab's holder does not answer ({error})") from error
        if message is None:
            raise LabError("the lab's holder ended while it built the lab; see its output above")
        if "error" in message:
            raise LabError(message["error"])
        if "ready" in message:
            return
        if progress:
            progress(message["progress"], message["done"], message["total"])
