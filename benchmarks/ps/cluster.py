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
    with server(load) as address:
        workers = [_start_worker(load, worker, address) for worker in range(load.workers)]
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


@contextlib.contextmanager
def server(load: Load) -> Iterator[str]:
    """One server for the load, as users start it; its address."""
    command = [sys.executable, "-m", "dmlcomm", "ps", "serve", "--log-level", "warning"]
    command += ["--workers", str(load.workers), "--transport", load.transport]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if ready := READY_LINE.fullmatch(line.rstrip()):
                yield ready[1]
                break
        else:
            raise RuntimeError(f"the server ended with {process.wait()} before it listened")
    finally:
        process.terminate()
        process.wait(10)


def _start_worker(load: Load, worker: int, address: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "benchmarks.ps.worker", "--servers", address]
    command += ["--worker", str(worker), "--workers", str(load.workers), "--call", load.call]
    command += ["--bytes", str(load.num_bytes), "--repeats", str(load.repeats)]
    command += ["--transport", load.transport]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
