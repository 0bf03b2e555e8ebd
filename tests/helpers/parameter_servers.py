"""Parameter servers for tests: inside this process, or as processes that can be killed.

    with servers(2, workers=2) as addresses:
        assert run_workers(train, 2, addresses) == [expected, expected]

Workers of `run_workers` are threads with a client each; what has to be killed is a process.
"""

import contextlib
import os
import queue
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dmlcomm.ps import status_view
from dmlcomm.ps.run_command import READY_LINE
from dmlcomm.ps.server.server import Server, ServerOptions
from dmlcomm.ps.worker.client import Client
from dmlcomm.ps.worker.control import Control
from helpers.waiting import DEADLINE_S

Popen = Callable[..., "subprocess.Popen[str]"]


@contextlib.contextmanager
def servers(num: int = 1, workers: int = 1, **options: Any) -> Iterator[str]:
    """`num` servers in this process; their addresses."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                Server(ServerOptions(index=i, num_servers=num, workers=workers, **options))
            )
            for i in range(num)
        ]
        yield ",".join(server.address for server in started)


def run_workers(
    function: Callable[..., Any],
    num: int,
    addresses: str,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> list[Any]:
    """The results of ``function(client)`` by worker, one thread each. Raises what one raises."""

    def work(worker: int) -> Any:
        with Client(addresses, worker=worker, timeout_s=deadline_s, **options) as client:
            return function(client)

    return run_threads(work, num, deadline_s)


def run_threads(work: Callable[[int], Any], num: int, deadline_s: float = DEADLINE_S) -> list[Any]:
    """The results of ``work(i)``, one thread each. Raises what one raises."""
    with ThreadPoolExecutor(num) as pool:
        futures = [pool.submit(work, worker) for worker in range(num)]
        # Whatever fails first is the reason why others wait in vain.
        errors = [error for f in futures if (error := f.exception(deadline_s)) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


def clean_environment(**changes: str) -> dict[str, str]:
    """This one's, without what a job or a user may have set."""
    left_out = ("DMLCOMM_", "RANK", "WORLD_SIZE", "LOCAL_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    return kept | {"COLUMNS": "160"} | changes


class ServerProcess:
    """`dmlcomm ps serve` with these arguments; the block kills it if it still runs.

    `popen` starts it, as on a host of a lab.

    Attributes:
        address: where it listens.
        line: what it has printed.
    """

    def __init__(
        self, *arguments: str, popen: Popen = subprocess.Popen, **environment: str
    ) -> None:
        self.process = popen(
            [sys.executable, "-m", "dmlcomm", "ps", "serve", *arguments],
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().rstrip()
        match = READY_LINE.fullmatch(self.line)
        if match is None:
            _, log = self.process.communicate(timeout=DEADLINE_S)
            raise AssertionError(f"the server did not start:\n{log}")
        self.address: str = match[1]

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> str:
        """SIGKILL; what it has logged."""
        self.process.kill()
        return self.process.communicate(timeout=DEADLINE_S)[1]

    def limit_files(self, num_bytes: int) -> None:
        """Its files grow up to this size; beyond it, writing fails."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (num_bytes, hard))

    @contextlib.contextmanager
    def limited_files(self, num_bytes: int) -> Iterator[None]:
        self.limit_files(num_bytes)
        try:
            yield
        finally:
            self.limit_files(resource.RLIM_INFINITY)

    def terminate(self) -> tuple[int, str]:
        """SIGTERM; the exit code and the log."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, log


class WorkerProcess:
    """A Python program that prints lines and reads them, as a worker that can be killed.

    `popen` starts it, as on a host of a lab.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        popen: Popen = subprocess.Popen,
        **environment: str,
    ) -> None:
        self.process = popen(
            [sys.executable, "-c", program, *arguments],
            env=clean_environment(**environment),
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("(ended)")

    def expect(self, line: str) -> None:
        """Waits for this line; others before it are passed over."""
        seen: list[str] = []
        while not seen or seen[-1] != line:
            seen.append(self.next_line())
            assert seen[-1] == line or seen[-1] != "(ended)", f"no {line!r} in {seen}"

    def next_line(self) -> str:
        return self._lines.get(timeout=DEADLINE_S)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs `dmlcomm` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dmlcomm", *arguments],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def addresses_of(processes: Sequence[ServerProcess]) -> str:
    return ",".join(process.address for process in processes)


@contextlib.contextmanager
def server_processes(
    num: int, *arguments: str, **environment: str
) -> Iterator[list[ServerProcess]]:
    """`num` servers of one job, each with these arguments."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                ServerProcess(
                    *("--servers", str(num), "--index", str(index), *arguments), **environment
                )
            )
            for index in range(num)
        ]


def status_of(address: str) -> dict[str, Any]:
    """What `dmlcomm ps status` has of a server."""
    controls = [Control(0, address, "", None)]
    (answer,) = status_view.ask(controls)
    controls[0].close()
    return answer


def call_server(addresses: str, server: int, method: str, request: Any) -> Any:
    """The answer of one of these servers to a request of the control plane."""
    with contextlib.closing(Control(server, addresses.split(",")[server], "", None)) as control:
        return control.call(method, request)


def checkpoint_of(address: str) -> dict[str, int]:
    """The clock of the last checkpoint, by model."""
    return {c["model"]: c["clock"] for c in status_of(address)["checkpoints"]}
