"""Runs a function on several ranks: real processes, one group, a deadline on everything.

    def sums(rank, world_size):
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert run_ranks(sums, world_size=2) == [[2, 2, 2], [2, 2, 2]]

The processes come from a fork server that has torch loaded already and has never started a thread,
so that a test with eight ranks starts in a fraction of a second. They meet in a FileStore: no port.
When the deadline passes, every rank's Python stacks and the states of its threads are printed, then
all are killed. A test that needs to interfere (signals) uses `Ranks` as a context manager.
"""

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from helpers.waiting import eventually, thread_state

_PR_SET_PDEATHSIG = 1
_DUMP_LIMIT_S = 5.0  # for a rank to say where it is

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    # The third is what an optimizer imports when it is made, in two seconds of a core.
    ["torch", "torch.distributed", "torch._dynamo", "dmlcomm.errors", "helpers.ranks"]
)


class RanksFailedError(AssertionError):
    """At least one rank raised, died or did not end in time. The message has every rank's story."""


@dataclass
class _Spec:
    """What a rank needs to know; it crosses the process border."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    world_size: int
    directory: str
    backend: str
    timeout_s: float
    env: dict[str, str]
    make_group: bool


@dataclass
class _Rank:
    """One process, as the test sees it."""

    process: Any
    connection: Connection
    log: Path
    messages: list[Any] = field(default_factory=list)
    result: Any = None
    error: str | None = None
    ended: bool = False


class Ranks:
    """The processes of one run. Leaving the block kills whoever is still there.

    Args:
        function: called as ``function(rank, world_size, *args)`` on every rank.
        env: environment of the ranks, set before dmlcomm reads it.
        backend: backend of the default group.
        make_group: whether the helper makes and destroys the default group.
        deadline_s: after that long, collect() dumps all stacks and fails.
        group_timeout_s: the timeout that the group is made with.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        world_size: int,
        args: Sequence[Any] = (),
        *,
        env: dict[str, str] | None = None,
        backend: str = "dmlcomm",
        make_group: bool = True,
        deadline_s: float = 60.0,
        group_timeout_s: float = 50.0,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="dmlcomm-test-")
        self._deadline = time.monotonic() + deadline_s
        spec = _Spec(
            function,
            tuple(args),
            world_size,
            self._directory.name,
            backend,
            group_timeout_s,
            env or {},
            make_group,
        )
        self.ranks = [self._start(spec, rank) for rank in range(world_size)]

    def _start(self, spec: _Spec, rank: int) -> _Rank:
        ours, theirs = _context.Pipe()
        # Not daemons, which may not have children (data loaders); see _prepare_process().
        process = _context.Process(target=_main, args=(spec, rank, theirs))
        process.start()
        theirs.close()
        return _Rank(process, ours, Path(spec.directory) / f"rank{rank}.log")

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join()
            rank.connection.close()
        self._directory.cleanup()

    def wait_for(self, message: Any, ranks: Sequence[int] | None = None) -> None:
        """Waits until each of `ranks` (default: all) has reported `message`."""
        for index in range(len(self.ranks)) if ranks is None else ranks:
            rank = self.ranks[index]
            while message not in rank.messages:
                if rank.ended or not self._receive(rank):
                    self._fail(f"rank {index} did not report {message!r}")

    def first_messages(self) -> list[Any]:
        """Waits until each rank has reported something; what came first, by rank."""
        for index, rank in enumerate(self.ranks):
            while not rank.messages:
                if rank.ended or not self._receive(rank):
                    self._fail(f"rank {index} did not report anything")
        return [rank.messages[0] for rank in self.ranks]

    def set_deadline(self, seconds: float) -> None:
        """From now on, instead of since the ranks were started."""
        self._deadline = time.monotonic() + seconds

    def send_signal(self, index: int, number: int) -> None:
        os.kill(self.ranks[index].process.pid, number)

    def pid(self, index: int) -> int:
        return int(self.ranks[index].process.pid)

    def collect(self, only: Sequence[int] | None = None) -> list[Any]:
        """Waits for the results of `only` these ranks (default: all), in order of rank."""
        chosen = [self.ranks[i] for i in (range(len(self.ranks)) if only is None else only)]
        for rank in chosen:
            while not rank.ended:
                if not self._receive(rank):
                    self._fail("the deadline has passed")
        if any(rank.error for rank in chosen):
            self._fail("a rank failed")
        return [rank.result for rank in chosen]

    def _receive(self, rank: _Rank) -> bool:
        """Takes one message of `rank`; False when the deadline passes first."""
        if not rank.connection.poll(max(0.0, self._deadline - time.monotonic())):
            return False
        try:
            kind, value = rank.connection.recv()
        except (EOFError, ConnectionResetError):
            rank.process.join(5)
            kind, value = "error", f"died with exit code {rank.process.exitcode}"
        if kind == "message":
            rank.messages.append(value)
        elif kind == "result":
            rank.result, rank.ended = value, True
        else:
            rank.error, rank.ended = value, True
        return True

    def _fail(self, reason: str) -> None:
        self._gather_late_messages()
        self._dump_stacks()
        stories = [reason]
        for index, rank in enumerate(self.ranks):
            state = rank.error or ("returned" if rank.ended else "was still running")
            log = rank.log.read_text(errors="replace")[-6000:] if rank.log.exists() else ""
            stories.append(f"--- rank {index} (pid {rank.process.pid}): {state}\n{log}")
        raise RanksFailedError("\n".join(stories))

    def _gather_late_messages(self) -> None:
        """When one rank fails the others often do so a moment later: their reasons help."""
        until = min(time.monotonic() + 1.0, self._deadline)
        for rank in self.ranks:
            while not rank.ended and rank.connection.poll(max(0.0, until - time.monotonic())):
                self._receive(rank)

    def _dump_stacks(self) -> None:
        running = [rank for rank in self.ranks if not rank.ended and rank.process.is_alive()]
        sizes = [_size_of(rank.log) for rank in running]
        for rank in running:
            os.kill(rank.process.pid, signal.SIGCONT)
            os.kill(rank.process.pid, signal.SIGUSR1)
        for rank, size in zip(running, sizes, strict=True):
            _wait_for_stacks(rank.process.pid, rank.log, size)
            with rank.log.open("a") as log:
                log.write(_thread_states(rank.process.pid))


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list:
    """The results of ``function(rank, world_size, *args)``, by rank. Options: those of `Ranks`."""
    with Ranks(function, world_size, args, **options) as ranks:
        return ranks.collect()


_connection: Connection | None = None


def report(message: Any) -> None:
    """Called on a rank: tells the test, which may be in `Ranks.wait_for`."""
    assert _connection is not None, "report() is for ranks"
    _connection.send(("message", message))


def meet(event: str) -> None:
    """Called on all ranks of the default group: returns when all are here, once for each event.

    Without a collective: a rank that dies in the next moment has left nothing undone for others,
    whereas one that has ended a collective may die before it has ended on them.
    """
    store = dist.distributed_c10d._get_default_store()
    if store.add(event, 1) == dist.get_world_size():
        store.set(f"{event}: all", "")
    store.wait([f"{event}: all"])


def _main(spec: _Spec, rank: int, connection: Connection) -> None:
    global _connection
    _connection = connection
    _prepare_process(spec, rank)
    try:
        if spec.make_group:
            _make_group(spec, rank)
        result = spec.function(rank, spec.world_size, *spec.args)
        if spec.make_group and dist.is_initialized():
            dist.destroy_process_group()
        connection.send(("result", result))
    except BaseException:
        connection.send(("error", traceback.format_exc()))


def _prepare_process(spec: _Spec, rank: int) -> None:
    # Ends with the fork server, and that with the test.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(f"{spec.directory}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ.update(
        spec.env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(spec.world_size)
    )
    if "TORCH_DISTRIBUTED_DEBUG" in spec.env:
        dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    torch.manual_seed(rank)


def _make_group(spec: _Spec, rank: int) -> None:
    if spec.backend == "dmlcomm":
        import dmlcomm  # noqa: F401, registers the backend also where it is not installed
    dist.init_process_group(
        spec.backend,
        store=dist.FileStore(f"{spec.directory}/store", spec.world_size),
        rank=rank,
        world_size=spec.world_size,
        timeout=timedelta(seconds=spec.timeout_s),
    )


def _wait_for_stacks(pid: int, log: Path, size: int) -> None:
    """Waits until a process has written its stacks to a log, which had this size before."""
    # Who cannot say where it is does not silence the others.
    with contextlib.suppress(AssertionError):
        eventually(
            lambda: _size_of(log) > size and not _handles(pid, signal.SIGUSR1),
            "a dump of stacks",
            _DUMP_LIMIT_S,
        )


def _size_of(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _handles(pid: int, number: int) -> bool:
    """Whether a thread is in its handler of this signal, which is blocked meanwhile."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            blocked = re.search(r"^SigBlk:\s*(\w+)", (task / "status").read_text(), re.MULTILINE)
            if blocked and int(blocked[1], 16) >> (number - 1) & 1:
                return True
    return False


def _thread_states(pid: int) -> str:
    """Name, state and kernel function of each thread: what the Python stacks do not show."""
    lines = ["threads:"]
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            name = (task / "comm").read_text().strip()
            state = thread_state(task)
            where = (task / "wchan").read_text().strip()
        except OSError:
            continue
        lines.append(f"  {task.name} {name}: {state} in {where}")
    return "\n".join(lines) + "\n"
