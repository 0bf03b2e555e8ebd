"""Proxies that are killed, stopped and started again at random moments, while workers train.

Servers, proxies and workers are processes of this host. Every sum is compared in the workers. A run
that makes no progress fails, with the stacks of all workers on stderr.
"""

import contextlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from dmlcomm._shell import inherited_environment
from dmlcomm.ps.protocol import HEARTBEAT_TIMEOUT_S
from dmlcomm.ps.run_command import READY_LINE

SHAPES = ("binary", "rack", "chain")
COUNTS = (1000, 100_003, 300_001)
WORKERS_EACH = 2
EVENTS_PER_CLUSTER = 10
# Without progress for so long, a run hangs.
HANG_S = 40.0
# Two clocks of all workers after an event: the first may have been complete before it.
CLOCKS_AFTER = 2


class RunError(Exception):
    """A sum was wrong, a worker failed, or there was no progress."""


@dataclass(frozen=True)
class Setting:
    servers: int
    proxies: int
    shape: str
    count: int

    @property
    def workers(self) -> int:
        return self.proxies * WORKERS_EACH


@dataclass
class Progress:
    """What the workers have printed."""

    clocks: dict[int, int] = field(default_factory=dict)
    by_proxy: dict[int, bool] = field(default_factory=dict)
    error: str = ""
    ended: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout:
            kind, *words = line.split()
            with self.changed:
                if kind == "clock":
                    worker, clock, by_proxy = map(int, words)
                    self.clocks[worker] = clock
                    self.by_proxy[worker] = bool(by_proxy)
                elif kind == "error":
                    self.error = self.error or line.strip()
                self.changed.notify_all()
        with self.changed:
            self.ended += 1
            self.changed.notify_all()


class Cluster:
    """A context manager: servers, proxies and workers, each a process."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.progress = Progress()
        self.proxies: list[subprocess.Popen[str] | None] = [None] * setting.proxies
        self.workers: list[subprocess.Popen[str]] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        setting = self.setting
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        addresses = []
        for index in range(setting.servers):
            arguments = ["ps", "serve", "--index", str(index), "--servers", str(setting.servers)]
            server = self._start([*arguments, "--workers", str(setting.workers)])
            addresses.append(READY_LINE.fullmatch(server.stdout.readline().rstrip())[1])
        for place in range(setting.proxies):
            self.start_proxy(place)
        for place in range(setting.proxies):
            numbers = range(place * WORKERS_EACH, (place + 1) * WORKERS_EACH)
            arguments = ["--servers", ",".join(addresses), "--proxy", self._socket(place)]
            arguments += ["--numbers", ",".join(map(str, numbers))]
            arguments += ["--workers", str(setting.workers), "--count", str(setting.count)]
            command = [sys.executable, "-m", "benchmarks.proxy.failing_worker", *arguments]
            worker = self._popen(command, stdin=subprocess.PIPE)
            self.workers.append(worker)
            threading.Thread(target=self.progress.read, args=(worker,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _socket(self, place: int) -> str:
        return f"{self._folder}/{place}.sock"

    def _start(self, arguments: list[str]) -> "subprocess.Popen[str]":
        level = ["--log-level", "error"]
        return self._popen([sys.executable, "-m", "dmlcomm", *arguments, *level])

    def _popen(self, command: list[str], **options: object) -> "subprocess.Popen[str]":
        environment = inherited_environment() | {"DMLCOMM_LOG_LEVEL": "error"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, **options
        )
        self._stack.callback(_end, process)
        return process

    def start_proxy(self, place: int) -> None:
        rack = f"rack{place % 2}"
        arguments = ["proxy", "serve", "--socket", self._socket(place), "--rack", rack]
        proxy = self._start([*arguments, "--tree", self.setting.shape])
        proxy.stdout.readline()
        self.proxies[place] = proxy

    def signal(self, place: int, number: int) -> None:
        self.proxies[place].send_signal(number)
        if number == signal.SIGKILL:
            self.proxies[place].wait()

    def clocks(self) -> dict[int, int]:
        with self.progress.changed:
            return dict(self.progress.clocks)

    def wait(self, what: str, holds: "object") -> None:
        """Until `holds(progress)`. Raises RunError."""
        deadline = time.monotonic() + HANG_S
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
        raise RunError(f"{what}: no progress for {HANG_S:g} s, workers at {progress.clocks}")

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
        self.wait("workers end", lambda p: p.ended == len(self.workers))
        codes = [worker.wait() for worker in self.workers]
        if any(codes):
            raise RunError(f"workers have ended with {codes}: {self.progress.error}")


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()


# --- events: each returns the seconds until all workers went on


def kill_one(cluster: Cluster, rng: random.Random) -> float:
    place = rng.randrange(cluster.setting.proxies)
    return _lose(cluster, rng, [place])


def kill_two(cluster: Cluster, rng: random.Random) -> float:
    return _lose(cluster, rng, rng.sample(range(cluster.setting.proxies), 2))


def kill_all(cluster: Cluster, rng: random.Random) -> float:
    return _lose(cluster, rng, list(range(cluster.setting.proxies)), pause_s=0)


def kill_and_return(cluster: Cluster, rng: random.Random) -> float:
    """The proxy is there again before the others may have noticed."""
    place = rng.randrange(cluster.setting.proxies)
    begin = time.monotonic()
    cluster.signal(place, signal.SIGKILL)
    cluster.start_proxy(place)
    cluster.wait_for_clocks("a proxy was started again")
    return time.monotonic() - begin


def stop_one(cluster: Cluster, rng: random.Random) -> float:
    place = rng.randrange(cluster.setting.proxies)
    begin = time.monotonic()
    cluster.signal(place, signal.SIGSTOP)
    # Some are woken before they are missed, or while they are.
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0, HEARTBEAT_TIMEOUT_S + 1))
    else:
        cluster.wait_for_clocks(f"proxy {place} was stopped")
    seconds = time.monotonic() - begin
    cluster.signal(place, signal.SIGCONT)
    cluster.wait_for_clocks(f"proxy {place} goes on")
    return seconds


def _lose(cluster: Cluster, rng: random.Random, places: list[int], pause_s: float = 0.5) -> float:
    for place in places[:-1]:
        cluster.signal(place, signal.SIGKILL)
        time.sleep(rng.uniform(0, pause_s))
    begin = time.monotonic()
    cluster.signal(places[-1], signal.SIGKILL)
    cluster.wait_for_clocks(f"proxies {places} were killed")
    seconds = time.monotonic() - begin
    for place in places:
        cluster.start_proxy(place)
    return seconds


EVENTS = {
    "kill": kill_one,
    "kill two": kill_two,
    "kill all": kill_all,
    "kill and return": kill_and_return,
    "stop": stop_one,
}


def run(times: int, seed: int) -> dict[str, list[float]]:
    """Seconds by event; `times` events in all. Raises RunError, which names the seed."""
    seconds: dict[str, list[float]] = {name: [] for name in EVENTS}
    done = 0
    while done < times:
        own_seed = seed + done
        rng = random.Random(own_seed)
        setting = Setting(
            servers=rng.choice((1, 2)),
            proxies=rng.choice((2, 3, 4)),
            shape=rng.choice(SHAPES),
            count=rng.choice(COUNTS),
        )
        events = min(EVENTS_PER_CLUSTER, times - done)
        try:
            for name, value in _run_cluster(setting, rng, events):
                seconds[name].append(value)
                print(f"  {name}: {value:.2f} s", file=sys.stderr, flush=True)
        except RunError as error:
            raise RunError(f"--seed {own_seed} ({setting}): {error}") from error
        done += events
    return seconds


def _run_cluster(setting: Setting, rng: random.Random, events: int) -> Iterator[tuple[str, float]]:
    print(setting, file=sys.stderr, flush=True)
    with Cluster(setting) as cluster:
        if rng.random() < 0.5:  # before there is a model, maybe
            time.sleep(rng.uniform(0, 3))
            place = rng.randrange(setting.proxies)
            cluster.signal(place, signal.SIGKILL)
            cluster.start_proxy(place)
        cluster.wait_for_clocks("the workers begin")
        for _ in range(events):
            cluster.wait_for_proxies()
            time.sleep(rng.uniform(0, 0.5))
            name = rng.choice(list(EVENTS))
            yield name, EVENTS[name](cluster, rng)
        cluster.finish()


def report(seconds: dict[str, list[float]]) -> str:
    lines = [f"{'event':16} {'times':>6} {'median s':>9} {'most s':>7}"]
    for name, values in seconds.items():
        if values:
            median = statistics.median(values)
            lines.append(f"{name:16} {len(values):6} {median:9.2f} {max(values):7.2f}")
    return "\n".join(lines)
