"""Servers, proxies and workers on the hosts of a lab."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.proxy.lab_hosts import LabHosts, Network
from benchmarks.ps.cluster import WORKER_TIMEOUT_S
from dmlcomm.topology.shape import parse_link_rate

STOP_TIMEOUT_S = 20
NO_PROXY = {"DMLCOMM_PROXY": "none"}


@dataclass(frozen=True)
class Load:
    """What workers on the hosts of a network push and pull.

    Attributes:
        num_bytes: of the model.
        workers_each: on every host.
    """

    network: Network
    num_bytes: int
    repeats: int
    workers_each: int = 1

    @property
    def workers(self) -> int:
        return self.network.hosts * self.workers_each


@dataclass(frozen=True)
class Outcome:
    """Of a run.

    Attributes:
        seconds: of each step, of the slowest worker.
        wrong: elements of all workers' results.
        bytes_in: what the servers receive per step.
        shape: of the tree; empty without proxies.
    """

    seconds: list[float]
    wrong: int
    bytes_in: int
    shape: str

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


class Cluster:
    """The lab of a load; a context manager."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._lab = LabHosts(load.network)

    def __enter__(self) -> "Cluster":
        self._lab.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._lab.__exit__(*error)

    def run(self, shape: str | None) -> Outcome:
        """With proxies in a tree of this shape, or without any."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self._start_servers(stack)
            if shape is not None:
                self._start_proxies(stack, folder, shape)
            workers = [self._start_worker(w, folder, shape) for w in range(self.load.workers)]
            try:
                results = [json.loads(w.communicate(timeout=WORKER_TIMEOUT_S)[0]) for w in workers]
            finally:
                for worker in workers:
                    worker.kill()
            return Outcome(
                [max(values) for values in zip(*(r["both_s"] for r in results), strict=True)],
                sum(r["wrong"] for r in results),
                self._received() // results[0]["steps"],
                "" if shape is None else self._shape_at(folder),
            )

    def _start_servers(self, stack: contextlib.ExitStack) -> None:
        command = ["ps", "serve", "--insecure", "--log-level", "warning"]
        command += [
            "--workers",
            str(self.load.workers),
            "--servers",
            str(self.load.network.servers),
        ]
        places = [
            (host, [*command, "--listen", self._lab.addresses[index], "--index", str(index)])
            for index, host in enumerate(self._lab.servers)
        ]
        self._start(stack, places)

    def _start_proxies(self, stack: contextlib.ExitStack, folder: str, shape: str) -> None:
        command = ["proxy", "serve", "--tree", shape, "--insecure", "--log-level", "warning"]
        command += ["--oversubscription", str(self.load.network.oversubscription)]
        rate_bps = parse_link_rate(self.load.network.rate)
        if rate_bps is not None:
            command += ["--rate-gbit", str(rate_bps / 1e9)]
        places = (
            (host, [*command, "--socket", f"{folder}/{host}.sock", "--rack", self._lab.rack(host)])
            for host in self._lab.hosts
        )
        self._start(stack, places)

    def _start(
        self, stack: contextlib.ExitStack, commands: Iterable[tuple[str, Sequence[str]]]
    ) -> None:
        """`dmlcomm` on hosts, all at once; returns when all listen."""
        processes = [
            (host, command, stack.enter_context(self._process(host, command)))
            for host, command in commands
        ]
        for host, command, process in processes:
            if not process.stdout.readline():
                raise SystemExit(f"dmlcomm {command[0]} ended with {process.wait()} on {host}")

    @contextlib.contextmanager
    def _process(self, host: str, command: Sequence[str]) -> Iterator[subprocess.Popen]:
        process = self._lab.popen(host, [sys.executable, "-m", "dmlcomm", *command], NO_PROXY)
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            process.kill()
            process.wait()

    def _start_worker(self, worker: int, folder: str, shape: str | None) -> subprocess.Popen:
        host = self._lab.hosts[worker // self.load.workers_each]
        proxy = "none" if shape is None else f"{folder}/{host}.sock"
        command = [sys.executable, "-m", "benchmarks.ps.worker"]
        command += ["--servers", ",".join(self._lab.addresses)]
        command += ["--worker", str(worker), "--workers", str(self.load.workers)]
        command += ["--bytes", str(self.load.num_bytes), "--call", "push_pull"]
        command += ["--repeats", str(self.load.repeats), "--transport", "auto"]
        return self._lab.popen(host, command, {"DMLCOMM_PROXY": proxy})

    def _received(self) -> int:
        """By all servers."""
        host = self._lab.servers[0]
        answers = self._ask(host, "ps", "status", ",".join(self._lab.addresses))["servers"]
        return sum(int(w["bytes_in"]) for answer in answers for w in answer["workers"])

    def _shape_at(self, folder: str) -> str:
        host = self._lab.hosts[0]
        jobs = self._ask(host, "proxy", "status", "--socket", f"{folder}/{host}.sock")["jobs"]
        return str(jobs[0]["nodes"][0]["shape"])

    def _ask(self, host: str, *arguments: str) -> dict:
        command = [sys.executable, "-m", "dmlcomm", *arguments, "--json"]
        process = self._lab.popen(host, command, NO_PROXY)
        output, _ = process.communicate(timeout=STOP_TIMEOUT_S)
        return json.loads(output)
