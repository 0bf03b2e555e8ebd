"""A server, proxies and workers on the hosts of a lab."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.ps.cluster import WORKER_TIMEOUT_S, Times
from dmlcomm._shell import inherited_environment
from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology

PORT = 7000
STOP_TIMEOUT_S = 20


@dataclass(frozen=True)
class Load:
    """Workers on all hosts of a lab but the first, which has the server.

    Attributes:
        hosts: of workers.
        workers_each: on every host.
        num_bytes: of the model.
        rate: of every NIC, as the lab takes it.
    """

    hosts: int
    workers_each: int
    num_bytes: int
    rate: str
    repeats: int

    @property
    def workers(self) -> int:
        return self.hosts * self.workers_each


class Cluster:
    """The lab of a load; a context manager."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._lab = Lab(f"flat:{load.hosts + 1},1", rate=load.rate)

    def __enter__(self) -> "Cluster":
        self._lab.__enter__()
        self._graph = self._lab.graph()
        self._server, *self._hosts = topology.hosts(self._graph)
        management = self._graph.nodes[self._server]["management"].partition("/")[0]
        self._address = f"{management}:{PORT}"
        return self

    def __exit__(self, *error: object) -> None:
        self._lab.__exit__(*error)

    def run(self, shape: str | None) -> tuple[Times, int]:
        """What the workers have measured, with proxies in a tree of this shape or without any.

        Also how many bytes have come to the server's NIC, per step.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(self._serving())
            if shape is not None:
                for host in self._hosts:
                    stack.enter_context(self._proxy(host, f"{folder}/{host}.sock", shape))
            workers = [self._start_worker(w, folder, shape) for w in range(self.load.workers)]
            try:
                results = [json.loads(w.communicate(timeout=WORKER_TIMEOUT_S)[0]) for w in workers]
            finally:
                for worker in workers:
                    worker.kill()
            bytes_in = self._received() // results[0]["steps"]
        times = [max(values) for values in zip(*(r["both_s"] for r in results), strict=True)]
        return Times([], [], times, sum(r["wrong"] for r in results)), bytes_in

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        command = ["ps", "serve", "--listen", self._address, "--insecure", "--log-level", "warning"]
        with self._process(self._server, [*command, "--workers", str(self.load.workers)]):
            yield

    def _proxy(
        self, host: str, socket: str, shape: str
    ) -> contextlib.AbstractContextManager[subprocess.Popen]:
        command = ["proxy", "serve", "--socket", socket, "--tree", shape, "--insecure"]
        command += ["--log-level", "warning"]
        return self._process(host, command)

    @contextlib.contextmanager
    def _process(self, host: str, command: Sequence[str]) -> Iterator[subprocess.Popen]:
        """`dmlcomm` on a host; the block begins when it listens."""
        process = self._lab.popen(
            host,
            [sys.executable, "-m", "dmlcomm", *command],
            env=self._environment(host),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            if not process.stdout.readline():
                raise SystemExit(f"dmlcomm {command[0]} ended with {process.wait()} on {host}")
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
        command = [sys.executable, "-m", "benchmarks.ps.worker", "--servers", self._address]
        command += ["--worker", str(worker), "--workers", str(self.load.workers)]
        command += ["--bytes", str(self.load.num_bytes), "--call", "push_pull"]
        command += ["--repeats", str(self.load.repeats), "--transport", "auto"]
        environment = self._environment(host, proxy)
        options = {"stdout": subprocess.PIPE, "text": True, "env": environment}
        return self._lab.popen(host, command, **options)

    def _received(self) -> int:
        command = [sys.executable, "-m", "dmlcomm", "ps", "status", self._address, "--json"]
        environment = self._environment(self._server)
        options = {"capture_output": True, "text": True, "check": True, "env": environment}
        status = json.loads(self._lab.exec(self._server, command, **options).stdout)
        workers = status["servers"][0]["workers"]
        return sum(int(worker["bytes_in"]) for worker in workers)
