"""Servers, proxies and workers on the hosts of a lab."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.ps.cluster import WORKER_TIMEOUT_S
from dmlcomm._shell import inherited_environment
from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology
from dmlcomm.topology.shape import parse_link_rate

PORT = 7000
STOP_TIMEOUT_S = 20


@dataclass(frozen=True)
class Load:
    """Servers on hosts of their own, in all racks alike, and workers on the others.

    Attributes:
        hosts: of workers.
        workers_each: on every host.
        num_bytes: of the model.
        rate: of every NIC, as the lab takes it.
        racks: with as many hosts each; 1: all are at one switch.
        oversubscription: the rates of a rack's hosts over that of its uplink.
    """

    hosts: int
    workers_each: int
    num_bytes: int
    rate: str
    repeats: int
    servers: int = 1
    racks: int = 1
    oversubscription: float = 1.0

    @property
    def workers(self) -> int:
        return self.hosts * self.workers_each

    @property
    def topology(self) -> str:
        """As the lab takes it."""
        num = self.hosts + self.servers
        if self.racks == 1:
            return f"flat:{num},1"
        if num % self.racks:
            raise ValueError(f"{self}: expected as many hosts in each rack, with the servers'")
        return f"clos:1x{self.racks}x{num // self.racks},1x1,r={self.oversubscription:g}x1"

    def rack_of(self, host: int) -> int:
        """Of the lab's host with this number; hosts of a rack follow each other."""
        return host * self.racks // (self.hosts + self.servers)


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
        self._lab = Lab(load.topology, rate=load.rate)

    def __enter__(self) -> "Cluster":
        self._lab.__enter__()
        self._graph = self._lab.graph()
        all_hosts = topology.hosts(self._graph)
        self._racks = {host: self.load.rack_of(i) for i, host in enumerate(all_hosts)}
        per_rack = len(all_hosts) // self.load.racks
        # The next one of each rack, in turns.
        in_turns = sorted(range(len(all_hosts)), key=lambda number: number % per_rack)
        servers = in_turns[: self.load.servers]
        self._servers = [all_hosts[number] for number in servers]
        self._hosts = [host for host in all_hosts if host not in self._servers]
        self._addresses = [self._address_of(host) for host in self._servers]
        return self

    def _address_of(self, host: str) -> str:
        management = self._graph.nodes[host]["management"].partition("/")[0]
        return f"{management}:{PORT}"

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
                sum(map(self._received, self._servers)) // results[0]["steps"],
                "" if shape is None else self._shape_at(folder),
            )

    def _start_servers(self, stack: contextlib.ExitStack) -> None:
        command = ["ps", "serve", "--insecure", "--log-level", "warning"]
        command += ["--workers", str(self.load.workers), "--servers", str(self.load.servers)]
        places = [
            (host, [*command, "--listen", self._addresses[index], "--index", str(index)])
            for index, host in enumerate(self._servers)
        ]
        self._start(stack, places)

    def _start_proxies(self, stack: contextlib.ExitStack, folder: str, shape: str) -> None:
        command = ["proxy", "serve", "--tree", shape, "--insecure", "--log-level", "warning"]
        command += ["--oversubscription", str(self.load.oversubscription)]
        rate_bps = parse_link_rate(self.load.rate)
        if rate_bps is not None:
            command += ["--rate-gbit", str(rate_bps / 1e9)]
        places = (
            (host, [*command, "--socket", f"{folder}/{host}.sock", "--rack", self._rack(host)])
            for host in self._hosts
        )
        self._start(stack, places)

    def _rack(self, host: str) -> str:
        return f"rack{self._racks[host]}"

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
        process = self._lab.popen(
            host,
            [sys.executable, "-m", "dmlcomm", *command],
            env=self._environment(host),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            process.kill()
            process.wait()

    def _environment(self, host: str, proxy: str = "none") -> dict[str, str]:
        names = ",".join(f"={name}" for name in topology.interfaces(self._graph, host))
        return inherited_environment() | {"DMLCOMM_SOCKET_IFNAME": names, "DMLCOMM_PROXY": proxy}

    def _start_worker(self, worker: int, folder: str, shape: str | None) -> subprocess.Popen:
        host = self._hosts[worker // self.load.workers_each]
        proxy = "none" if shape is None else f"{folder}/{host}.sock"
        command = [sys.executable, "-m", "benchmarks.ps.worker"]
        command += ["--servers", ",".join(self._addresses)]
        command += ["--worker", str(worker), "--workers", str(self.load.workers)]
        command += ["--bytes", str(self.load.num_bytes), "--call", "push_pull"]
        command += ["--repeats", str(self.load.repeats), "--transport", "auto"]
        environment = self._environment(host, proxy)
        options = {"stdout": subprocess.PIPE, "text": True, "env": environment}
        return self._lab.popen(host, command, **options)

    def _received(self, server: str) -> int:
        (status,) = self._ask(server, "ps", "status", self._address_of(server))["servers"]
        return sum(int(worker["bytes_in"]) for worker in status["workers"])

    def _shape_at(self, folder: str) -> str:
        host = self._hosts[0]
        jobs = self._ask(host, "proxy", "status", "--socket", f"{folder}/{host}.sock")["jobs"]
        return str(jobs[0]["nodes"][0]["shape"])

    def _ask(self, host: str, *arguments: str) -> dict:
        command = [sys.executable, "-m", "dmlcomm", *arguments, "--json"]
        environment = self._environment(host)
        options = {"capture_output": True, "text": True, "check": True, "env": environment}
        return json.loads(self._lab.exec(host, command, **options).stdout)
