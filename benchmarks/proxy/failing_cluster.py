"""Servers, proxies and workers, of which proxies can be killed: on this host, or in a lab.

Workers are a module of this folder, a process for each proxy with a thread for each worker. They
take --servers, --proxy, --numbers, --workers and --count, and print lines:

    clock WORKER CLOCK BY_PROXY SINCE  it has done so many clocks, and goes by a proxy (1) or not
                                       (0) since then, by time.monotonic()
    result WORKER VALUE...             figures, at the end
    error TEXT

A line "last CLOCK" by stdin tells them where to end.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.proxy.lab_hosts import LabHosts, Network, only_child_of
from dmlcomm._shell import inherited_environment
from dmlcomm.network import proxy_socket
from dmlcomm.ps.run_command import READY_LINE

WORKERS_EACH = 2
# Without progress for so long, a run hangs.
HANG_S = 40.0
ASK_TIMEOUT_S = 10.0
LOOK_INTERVAL_S = 0.05
RACKS = 2
LAB_RATE = "500mbit"
# Two clocks of all workers after an event: the first may have been complete before it.
CLOCKS_AFTER = 2


class RunError(Exception):
    """A sum was wrong, a worker failed, or there was no progress."""


@dataclass(frozen=True)
class Setting:
    """
    Attributes:
        in_lab: each server and each proxy has a host in one of two racks; else all are processes of
            this host, and the proxies say that they are in two racks.
    """

    servers: int
    proxies: int
    shape: str
    count: int
    in_lab: bool = False

    @property
    def workers(self) -> int:
        return self.proxies * WORKERS_EACH


@dataclass
class Progress:
    """What the workers have printed."""

    clocks: dict[int, int] = field(default_factory=dict)
    by_proxy: dict[int, bool] = field(default_factory=dict)
    way_since: dict[int, float] = field(default_factory=dict)
    results: dict[int, list[float]] = field(default_factory=dict)
    error: str = ""
    ended: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout:
            kind, *words = line.split()
            with self.changed:
                if kind == "clock":
                    worker, clock, by_proxy = map(int, words[:3])
                    self.clocks[worker] = clock
                    self.way_since[worker] = float(words[3])
                    self.by_proxy[worker] = bool(by_proxy)
                elif kind == "result":
                    self.results[int(words[0])] = [float(word) for word in words[1:]]
                elif kind == "error":
                    self.error = self.error or line.strip()
                self.changed.notify_all()
        with self.changed:
            self.ended += 1
            self.changed.notify_all()


class Cluster:
    """A context manager: servers, proxies and workers, each a process.

    Args:
        worker: the module.
        by_proxies: else workers go directly, and there are no proxies.
    """

    def __init__(self, setting: Setting, worker: str, by_proxies: bool = True) -> None:
        self.setting = setting
        self._worker = worker
        self._by_proxies = by_proxies
        self.progress = Progress()
        self.proxies: list[subprocess.Popen[str] | None] = [None] * setting.proxies
        self.workers: list[subprocess.Popen[str]] = []
        self._lab: LabHosts | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        setting = self.setting
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        if setting.in_lab:
            network = Network(setting.proxies, setting.servers, LAB_RATE, RACKS)
            self._lab = self._stack.enter_context(LabHosts(network))
        addresses = [self._start_server(index) for index in range(setting.servers)]
        if self._by_proxies:
            for place in range(setting.proxies):
                self.start_proxy(place)
        for place in range(setting.proxies):
            numbers = _workers_at(place)
            proxy = self._socket(place) if self._by_proxies else "none"
            arguments = ["--servers", ",".join(addresses), "--proxy", proxy]
            arguments += ["--numbers", ",".join(map(str, numbers))]
            arguments += ["--workers", str(setting.workers), "--count", str(setting.count)]
            command = [sys.executable, "-m", self._worker, *arguments]
            worker = self._popen(self._host(place), command, stdin=subprocess.PIPE)
            self.workers.append(worker)
            threading.Thread(target=self.progress.read, args=(worker,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _socket(self, place: int) -> str:
        return f"{self._folder}/{place}.sock"

    def _host(self, place: int) -> str | None:
        return self._lab.hosts[place] if self._lab else None

    def _start_server(self, index: int) -> str:
        """Its address."""
        setting = self.setting
        arguments = ["ps", "serve", "--index", str(index), "--servers", str(setting.servers)]
        arguments += ["--workers", str(setting.workers)]
        host = None
        if self._lab:
            host = self._lab.servers[index]
            arguments += ["--listen", self._lab.addresses[index], "--insecure"]
        server = self._start(host, arguments)
        return str(READY_LINE.fullmatch(server.stdout.readline().rstrip())[1])

    def _start(self, host: str | None, arguments: list[str]) -> "subprocess.Popen[str]":
        level = ["--log-level", "error"]
        return self._popen(host, [sys.executable, "-m", "dmlcomm", *arguments, *level])

    def _popen(
        self, host: str | None, command: list[str], **options: object
    ) -> "subprocess.Popen[str]":
        changes = {"DMLCOMM_LOG_LEVEL": "error"}
        if self._lab:
            process = self._lab.popen(host, command, changes, **options)
        else:
            environment = inherited_environment() | changes
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, text=True, **options
            )
        self._stack.callback(_end, process)
        return process

    def start_proxy(self, place: int) -> None:
        host = self._host(place)
        rack = self._lab.rack(host) if self._lab else f"rack{place % RACKS}"
        arguments = ["proxy", "serve", "--socket", self._socket(place), "--rack", rack]
        arguments += ["--tree", self.setting.shape]
        if self._lab:
            arguments.append("--insecure")
        proxy = self._start(host, arguments)
        proxy.stdout.readline()
        self.proxies[place] = proxy

    def inner(self) -> dict[int, list[int]]:
        """Proxies that have others below them, and these, once there is a tree of one server."""
        while True:
            nodes = {place: self._node(place) for place in range(self.setting.proxies)}
            proxies = {node["place"]: place for place, node in nodes.items() if node}
            below = {
                place: [proxies[child] for child in node["children"] if child in proxies]
                for place, node in nodes.items()
                if node and node["children"]
            }
            if below:
                return below
            self.wait_for_clocks("a tree has inner nodes")

    def _node(self, place: int) -> dict[str, Any]:
        """The state of the proxy in the tree of the first server; empty: it is in none."""
        status = proxy_socket.ask(self._socket(place), {"status": True}, ASK_TIMEOUT_S)
        nodes = [job["nodes"][0] for job in status["jobs"]]
        return next((node for node in nodes if node["parent_since"] is not None), {})

    def moved_at(self, lost: int, children: Sequence[int], since: float) -> float:
        """When the last of the workers of a lost proxy, and of the proxies below it, had a new way.

        By time.monotonic(), which is the same for all processes of a host and its labs. Waits until
        they have. Raises RunError.
        """
        workers = _workers_at(lost)
        self.wait(
            f"the workers of proxy {lost} go another way",
            lambda p: all(p.way_since[worker] > since for worker in workers),
        )
        moved = [self.progress.way_since[worker] for worker in workers]
        deadline = time.monotonic() + HANG_S
        for child in children:
            while (at := self._node(child).get("parent_since", since)) <= since:
                if time.monotonic() > deadline:
                    raise RunError(f"proxy {child} below proxy {lost} has no new parent")
                time.sleep(LOOK_INTERVAL_S)
            moved.append(at)
        return max(moved)

    def signal(self, place: int, number: int) -> None:
        process = self.proxies[place]
        os.kill(only_child_of(process.pid) if self._lab else process.pid, number)
        if number == signal.SIGKILL:
            process.wait()

    def clocks(self) -> dict[int, int]:
        with self.progress.changed:
            return dict(self.progress.clocks)

    def wait(self, what: str, holds: Callable[[Progress], bool], timeout_s: float = HANG_S) -> None:
        """Until `holds(progress)`. Raises RunError."""
        deadline = time.monotonic() + timeout_s
        progress = self.progress
        with progress.changed:
            while not holds(progress):
                if progress.error:
                    raise RunError(progress.error)
                if time.monotonic() > deadline:
                    break
                progress.changed.wait(0.1)
            else:
                return
        for worker in self.workers:
            worker.send_signal(signal.SIGUSR1)
        time.sleep(2)
        raise RunError(f"{what}: no progress for {timeout_s:g} s, workers at {progress.clocks}")

    def wait_for_clocks(self, what: str, more: int = CLOCKS_AFTER) -> None:
        before = self.clocks()
        goals = {w: before.get(w, 0) + more for w in range(self.setting.workers)}
        self.wait(what, lambda p: all(p.clocks.get(w, 0) >= goal for w, goal in goals.items()))

    def wait_for_proxies(self) -> None:
        self.wait(
            "workers return to their proxies",
            lambda p: len(p.by_proxy) == self.setting.workers and all(p.by_proxy.values()),
        )

    def finish(self) -> None:
        """Ends all workers at one clock."""
        last = max(self.clocks().values()) + 50
        for worker in self.workers:
            worker.stdin.write(f"last {last}\n")
            worker.stdin.flush()
        while (slowest := min(self.clocks().values())) < last:
            self.wait("workers go on", lambda p, before=slowest: min(p.clocks.values()) > before)
        self.wait("workers end", lambda p: p.ended == len(self.workers))
        codes = [worker.wait() for worker in self.workers]
        if any(codes):
            raise RunError(f"workers have ended with {codes}: {self.progress.error}")


def _workers_at(place: int) -> range:
    return range(place * WORKERS_EACH, (place + 1) * WORKERS_EACH)


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
