"""``lab run`` and ``lab exec``: processes in the lab, their output, signals and exit codes."""

import contextlib
import fnmatch
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import networkx as nx

from dmlcomm._shell import FORWARDED, exit_code, inherited_environment, wait_for
from dmlcomm.errors import LabError
from dmlcomm.lab import environment
from dmlcomm.lab.client import Client
from dmlcomm.lab.entry import Entry
from dmlcomm.lab.environment import Job
from dmlcomm.topology import graph as topology

LAB_IS_GONE = 1

# How long processes may take to end after SIGTERM, before SIGKILL.
GRACE_S = 5.0

CHUNK_BYTES = 1 << 16

# A line that never ends is passed on in parts of this size.
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class RunSettings:
    """The options of ``lab run``; ``extra`` are variables that win over what the lab sets."""

    ranks_per_host: int = 1
    torchrun: bool = False
    gloo_interfaces: int = 1
    linger_s: float = 1.0
    on: str = "*"
    extra: dict[str, str] = field(default_factory=dict)


def run(client: Client, command: Sequence[str], settings: RunSettings) -> int:
    """The exit code of the first process that failed, else 0."""
    description = client.ask("describe")
    graph = topology.from_json(description["graph"])
    hosts = _chosen(graph, settings.on)
    registered = client.ask("run")
    nics = settings.gloo_interfaces or len(topology.interfaces(graph, hosts[0]))
    job = Job(graph, hosts, settings.ranks_per_host, registered["run"], registered["number"], nics)
    entry = Entry(client)
    with contextlib.closing(_Processes(client, settings)) as processes:
        for label, node, words, variables in _starts(job, command, settings):
            processes.add(label, entry.start(node, words, variables, **_PIPES))
        return processes.wait()


def run_one(client: Client, node: str, command: Sequence[str]) -> int:
    """Runs a command on one node with this process's own input and output; its exit code."""
    return wait_for(Entry(client).start(node, command, inherited_environment()))


_PIPES: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "start_new_session": True,
}


def _chosen(graph: nx.Graph, patterns: str) -> list[str]:
    """By number. ``patterns``: a comma list, each for a host or more."""
    names = topology.hosts(graph)
    found: set[str] = set()
    for pattern in patterns.split(","):
        named = fnmatch.filter(names, pattern)
        if not named:
            raise LabError(
                f'no host of {graph.graph["spec"]} is called "{pattern}": there are {names[0]} to '
                f"{names[-1]}"
            )
        found.update(named)
    return [name for name in names if name in found]


def _starts(
    job: Job, command: Sequence[str], settings: RunSettings
) -> list[tuple[str, str, list[str], dict[str, str]]]:
    """Label, node, command and environment of every process to be started."""
    if settings.torchrun:
        return [
            (
                job.hosts[host],
                job.hosts[host],
                [*_torchrun(job, host), *command],
                environment.of_host(job, host, settings.extra),
            )
            for host in range(job.num_hosts)
        ]
    return [
        (
            str(rank),
            job.hosts[rank // job.ranks_per_host],
            list(command),
            environment.of_rank(job, rank, settings.extra),
        )
        for rank in range(job.num_hosts * job.ranks_per_host)
    ]


def _torchrun(job: Job, host: int) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(job.num_hosts), "--node-rank", str(host)),
        *("--nproc-per-node", str(job.ranks_per_host)),
        *("--master-addr", job.master_address, "--master-port", str(job.master_port)),
    ]


class _PrefixedStream:
    """Copies what arrives at descriptor ``source`` to ``target``, whole lines with a prefix."""

    def __init__(self, source: int, target: BinaryIO, prefix: str) -> None:
        self._source = source
        self._target = target
        self._prefix = prefix.encode()
        self._rest = b""

    def copy(self) -> bool:
        """Copies what is there; False at the end."""
        data = os.read(self._source, CHUNK_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > MAX_LINE_BYTES):
            lines.append(self._rest)
            self._rest = b""
        self._target.write(b"".join(self._prefix + line + b"\n" for line in lines))
        self._target.flush()
        return bool(data)


class _Processes:
    """The processes of one run: passes on output and signals until all have ended."""

    def __init__(self, client: Client, settings: RunSettings) -> None:
        self._settings = settings
        self._client = client
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._streams = 0
        self._first_failure: int | None = None
        # The next signal to end the others, and its time.
        self._next: tuple[float, int] | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(client, selectors.EVENT_READ, self._lab_is_gone)
        self._wakeup, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._forward)
        for number in FORWARDED:
            signal.signal(number, lambda *_: None)

    def add(self, label: str, process: subprocess.Popen[bytes]) -> None:
        self._running[label] = process
        pidfd = os.pidfd_open(process.pid)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(label, pidfd))
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert source is not None
            stream = _PrefixedStream(source.fileno(), target.buffer, f"[{label}] ")
            self._selector.register(source, selectors.EVENT_READ, self._copier(stream, source))
            self._streams += 1

    def wait(self) -> int:
        """Until all processes have ended and all their output is written."""
        while self._running or self._streams:
            for key, _ in self._selector.select(self._seconds_to_next()):
                key.data()
            if self._next and time.monotonic() >= self._next[0]:
                self._end_others(self._next[1])
        return self._first_failure or 0

    def close(self) -> None:
        """Kills what is left, also processes that the ranks have started, and returns when gone."""
        self._send_all(signal.SIGKILL)
        self._end_descendants()
        for process in self._running.values():
            process.wait()
        self._selector.close()

    def _end_descendants(self) -> None:
        with contextlib.suppress(LabError):  # they end with the lab as well
            self._client.ask("end_run")

    def _copier(self, stream: _PrefixedStream, source: Any) -> Callable[[], None]:
        def copy() -> None:
            if not stream.copy():
                self._selector.unregister(source)
                source.close()
                self._streams -= 1

        return copy

    def _ended(self, label: str, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        code = exit_code(self._running.pop(label).wait())
        if code != 0 and self._first_failure is None:
            self._first_failure = code
            _say(f"[{label}] ended with exit code {code}")
            self._next = (time.monotonic() + self._settings.linger_s, signal.SIGTERM)
        if not self._running:
            # A process that a rank left behind may hold the pipes open: nobody waits for it.
            self._end_descendants()

    def _end_others(self, number: int) -> None:
        self._send_all(number)
        again = (time.monotonic() + GRACE_S, signal.SIGKILL)
        self._next = again if number == signal.SIGTERM else None

    def _seconds_to_next(self) -> float | None:
        return max(0.0, self._next[0] - time.monotonic()) if self._next else None

    def _forward(self) -> None:
        for number in os.read(self._wakeup, 64):
            self._send_all(number)

    def _send_all(self, number: int) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _lab_is_gone(self) -> None:
        self._selector.unregister(self._client)
        _say(f'the lab "{self._client.name}" has ended')
        self._first_failure = self._first_failure or LAB_IS_GONE


def _say(text: str) -> None:
    print(f"dmlcomm lab: {text}", file=sys.stderr, flush=True)
