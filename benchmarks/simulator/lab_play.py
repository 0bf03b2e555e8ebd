"""Plays a scenario of ``dmlcomm simulate`` in the lab: the same jobs as processes on its hosts."""

import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.barrier import barrier_file
from benchmarks.lab_run import from_line
from benchmarks.simulator.rank import TIMEOUT_S
from benchmarks.simulator.together import Together
from dmlcomm.lab import Lab, Options
from dmlcomm.simulate.push_pull import DIRECT, OPERATION
from dmlcomm.simulate.scenario import Job, Scenario, parse
from dmlcomm.strategy.candidates import SHAPES
from dmlcomm.topology import graph as topology

PORT = 7000
STOP_TIMEOUT_S = 20
# The longest scenario takes 35 s. What a rank says of its own timeout comes before.
DEADLINE_S = TIMEOUT_S + 60


@dataclass
class Played:
    """Of a job: when its ranks began and ended."""

    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    wrong: int = 0

    @property
    def seconds(self) -> float:
        return max(self.ends) - min(self.begins)


def play(content: dict[str, Any], deadline_s: float = DEADLINE_S) -> dict[str, Played]:
    """By job. Ends the program if a rank or a server fails, or if ``deadline_s`` is over."""
    scenario = parse(content)
    options = Options(scenario.network.mtu)
    with (
        Lab(content["topology"], rate=str(content["rate"]), options=options) as lab,
        Together(deadline_s) as together,
    ):
        return _Play(lab, scenario, together).run()


class _Play:
    def __init__(self, lab: Lab, scenario: Scenario, together: Together) -> None:
        self._lab = lab
        self._together = together
        self._scenario = scenario
        self._graph = lab.graph()
        self._hosts = topology.hosts(self._graph)

    def run(self) -> dict[str, Played]:
        found = {job.name: Played() for job in self._scenario.jobs}
        with contextlib.ExitStack() as stack:
            processes = self._start_all(stack)
            begun = threading.Event()
            readers = [
                threading.Thread(target=self._read, args=(process, name, played, begun))
                for process, (name, played) in zip(processes, found.items(), strict=True)
            ]
            for reader in readers:
                reader.start()
            begun.wait()
            begins = [begin for played in found.values() for begin in played.begins]
            if begins:
                self._make_happen(min(begins))
            for reader in readers:
                reader.join()
            self._check(found)
        return found

    def _start_all(self, stack: contextlib.ExitStack) -> list[subprocess.Popen[str]]:
        """The ranks of all jobs; the stack ends their servers and proxies."""
        jobs = self._scenario.jobs
        barrier = stack.enter_context(barrier_file(sum(len(job.hosts) for job in jobs)))
        place, processes = 0, []
        for number, job in enumerate(jobs):
            process = self._start(stack, job, PORT + number, barrier, place)
            processes.append(self._together.add(process))
            place += len(job.hosts)
        return processes

    def _read(
        self, process: subprocess.Popen[str], name: str, played: Played, begun: threading.Event
    ) -> None:
        """What the ranks of a job print, until they have ended."""
        assert process.stdout is not None
        for line in process.stdout:
            if "{" not in line:
                continue
            told = from_line(line)
            if "begin" in told:
                played.begins.append(told["begin"])
                begun.set()
            else:
                played.ends.append(told["end"])
                played.wrong += told["wrong"]
        begun.set()  # nothing comes any more
        self._together.check(process, f"a rank of {name}")

    def _check(self, found: dict[str, Played]) -> None:
        """Ends the program if a job has not ended on all of its hosts."""
        ended = [
            f"{len(found[job.name].ends)} of the {len(job.hosts)} ranks of {job.name}"
            for job in self._scenario.jobs
        ]
        if cause := self._together.cause:
            raise SystemExit(f"{cause}; ended have {', '.join(ended)}")

    def _make_happen(self, since_s: float) -> None:
        for move in self._scenario.moves:
            time.sleep(max(0.0, since_s + move.at_s - time.monotonic()))
            self._lab.circuit(move.circuits, move.dark_s)

    def _start(
        self, stack: contextlib.ExitStack, job: Job, port: int, barrier: str, place: int
    ) -> subprocess.Popen[str]:
        """The ranks of a job, behind its servers and proxies."""
        servers, proxies = "-", "none"
        if job.op == OPERATION:
            servers = ",".join(self._address(host, port) for host in job.servers)
            stack.enter_context(self._servers(job, servers))
            if job.tree != DIRECT:
                proxies = stack.enter_context(tempfile.TemporaryDirectory())
                stack.enter_context(self._proxies(job, proxies))
        told = {"op": job.op, "num_bytes": job.num_bytes, "steps": job.steps}
        told |= {"compute_s": job.compute_s, "answer": job.answer}
        command = [sys.executable, "-m", "benchmarks.simulator.rank"]
        command += [json.dumps(told), servers, proxies]
        algorithm = f"{job.op}={job.algorithm}" if job.algorithm else ""
        return self._lab.popen_run(
            [*command, barrier, str(place)],
            *("--on", self._names(job.hosts), "-e", f"DMLCOMM_ALGORITHM={algorithm}"),
            stdout=subprocess.PIPE,
            text=True,
        )

    def _servers(self, job: Job, servers: str) -> contextlib.AbstractContextManager[None]:
        serve = ["ps", "serve", "--servers", servers, "--workers", str(len(job.hosts))]
        addresses = f"servers=({servers.replace(',', ' ')})"
        own = '--index $RANK --listen "${servers[RANK]}"'
        return self._serving(job.servers, serve, addresses, own)

    def _proxies(self, job: Job, folder: str) -> contextlib.AbstractContextManager[None]:
        serve = ["proxy", "serve", "--tree", SHAPES[job.tree]]
        names = [self._hosts[host] for host in job.hosts]
        racks = [topology.links_of(self._graph, name)[0].other(name).node for name in names]
        own = f'--rack "${{racks[RANK]}}" --socket {shlex.quote(folder)}/$(hostname)'
        return self._serving(job.hosts, serve, f"racks=({' '.join(racks)})", own)

    @contextlib.contextmanager
    def _serving(
        self, hosts: Sequence[int], serve: Sequence[str], before: str, own: str
    ) -> Iterator[None]:
        """`dmlcomm` on hosts; the block begins when all listen. ``own``: words for bash."""
        words = [sys.executable, "-m", "dmlcomm", *serve, "--insecure", "--log-level", "warning"]
        command = ["bash", "-c", f"{before}; exec {shlex.join(words)} {own}"]
        options = {"stdout": subprocess.PIPE, "text": True}
        with self._lab.popen_run(command, "--on", self._names(hosts), **options) as process:
            self._together.add(process)
            try:
                assert process.stdout is not None
                for _ in hosts:
                    if not process.stdout.readline():
                        ended = f"dmlcomm {serve[0]} ended: see the output above"
                        raise SystemExit(self._together.cause or ended)
                yield
                process.terminate()
                process.communicate(timeout=STOP_TIMEOUT_S)
            finally:
                process.kill()

    def _address(self, host: int, port: int) -> str:
        """Of a server's control plane, on the management network."""
        management = self._graph.nodes[self._hosts[host]]["management"]
        return f"{management.partition('/')[0]}:{port}"

    def _names(self, hosts: Sequence[int]) -> str:
        return ",".join(self._hosts[host] for host in hosts)
