"""Servers and workers of `benchmarks.ps` as processes of this host."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from dmlcomm.ps.run_command import READY_LINE

WORKER_TIMEOUT_S = 300


@dataclass(frozen=True)
class Load:
    """What the workers do.

    Attributes:
        call: "push_and_pull" (push, clock, pull) or "push_pull" (one call for the three).
    """

    num_bytes: int
    workers: int
    call: str
    transport: str
    repeats: int


@dataclass(frozen=True)
class Times:
    """Seconds per repeat, of the slowest worker; ``wrong`` elements over all workers."""

    push_s: list[float]
    pull_s: list[float]
    both_s: list[float]
    wrong: int


def run(load: Load) -> Times:
    """Starts a server and the workers, and waits for what they have measured."""
    with servers(load, 1) as started:
        return _collect([_start_worker(load, worker, started) for worker in range(load.workers)])


def run_and_kill(load: Load, kill_after_steps: int) -> Times:
    """The same with two servers that hold a replica each, of which one is killed under load."""
    with servers(load, 2) as started:
        workers = [
            _start_worker(load, worker, started, report_step=kill_after_steps)
            for worker in range(load.workers)
        ]
        assert workers[0].stdout is not None
        workers[0].stdout.readline()  # it has done so many steps, and goes on
        started[0].process.kill()
        return _collect(workers)


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen
    address: str


@contextlib.contextmanager
def servers(load: Load, count: int) -> Iterator[list[Server]]:
    """Servers for the load, as users start them; with replicas where there are several."""
    command = [sys.executable, "-m", "dmlcomm", "ps", "serve", "--log-level", "error"]
    command += ["--workers", str(load.workers), "--transport", load.transport]
    command += ["--servers", str(count), "--replicas", str(int(count > 1))]
    processes = [
        subprocess.Popen([*command, "--index", str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(count)
    ]
    try:
        yield [Server(process, _address_of(process)) for process in processes]
    finally:
        for process in processes:
            process.terminate()
            process.wait(10)


def _address_of(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if ready := READY_LINE.fullmatch(line.rstrip()):
            return ready[1]
    raise RuntimeError(f"the server ended with {process.wait()} before it listened")


def _start_worker(
    load: Load, worker: int, started: list[Server], report_step: int = -1
) -> subprocess.Popen:
    addresses = ",".join(server.address for server in started)
    command = [sys.executable, "-m", "benchmarks.ps.worker", "--servers", addresses]
    command += ["--worker", str(worker), "--workers", str(load.workers), "--call", load.call]
    command += ["--bytes", str(load.num_bytes), "--repeats", str(load.repeats)]
    command += ["--transport", load.transport]
    if report_step >= 0:  # the servers' barrier is for those that live
        command += ["--no-barrier"]
    if worker == 0:
        command += ["--report-step", str(report_step)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _collect(workers: list[subprocess.Popen]) -> Times:
    try:
        results = [json.loads(w.communicate(timeout=WORKER_TIMEOUT_S)[0]) for w in workers]
    finally:
        for worker in workers:
            worker.kill()
    slowest = {
        name: [max(values) for values in zip(*(r[name] for r in results), strict=True)]
        for name in ("push_s", "pull_s", "both_s")
    }
    return Times(**slowest, wrong=sum(r["wrong"] for r in results))
