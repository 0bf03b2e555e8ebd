"""The processes of a job that is disturbed: what they report, signals, and what a hang shows.

    with Job(folder) as job:
        job.start("rank 0", "soak.rank", config)
        job.wait("rank 0 works", lambda: job["rank 0"].progress > 3)

A member is a Python module that is given a `Link` and a configuration. It may be on a host of a
lab.
"""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from helpers.parameter_servers import Popen, clean_environment
from helpers.waiting import eventually
from helpers.warm_python import warm_command
from soak.faults import Failure, SoakError

# Without what is waited for, a job hangs.
HANG_S = 40.0
# What members report that may not be, as it is counted.
FAILURES = {"dip": Failure.LOST_UPDATE, "fewer": Failure.LOST_UPDATE}
TESTS = Path(__file__).resolve().parents[1]
# That a process may use more than before: sizes are random, and gRPC starts threads and opens
# descriptors when it first needs them.
MEMORY_BYTES = 256 << 20
THREADS = DESCRIPTORS = 8
STACKS_S = 20.0  # until all members have written theirs
ENTRIES = ("soak/rank.py", "soak/worker.py")  # one of them is in the main thread's stack


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    descriptors: int
    threads: int
    resident_bytes: int

    @staticmethod
    def of(pid: int) -> "Usage":
        process = psutil.Process(pid)
        with process.oneshot():
            return Usage(process.num_fds(), process.num_threads(), process.memory_info().rss)

    @staticmethod
    def own() -> "Usage":
        """Of this process, but for memory that the allocator keeps for later."""
        ctypes.CDLL(None).malloc_trim(0)
        return Usage.of(os.getpid())

    def has_grown_from(self, before: "Usage") -> bool:
        return (
            self.descriptors > before.descriptors + DESCRIPTORS
            or self.threads > before.threads + THREADS
            or self.resident_bytes > before.resident_bytes + MEMORY_BYTES
        )


@dataclass(eq=False)
class Member:
    """One process. All but the constants changes under the lock of its job.

    Attributes:
        progress: what it counts, as batches or clocks.
        detail: what it says with that.
        reports: everything else that it has said, the oldest first; who has dealt with one takes
            it out.
    """

    name: str
    pid: int
    connection: Connection
    starter: "subprocess.Popen[str]"
    log: Path
    progress: int = 0
    detail: Any = None
    reports: list[tuple[str, Any]] = field(default_factory=list)
    has_ended: bool = False
    may_end: bool = False
    reader: threading.Thread | None = None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def say(self, *words: Any) -> None:
        # Who has died meanwhile is noticed by whoever waits for it.
        with contextlib.suppress(OSError):
            self.connection.send(words)


class Job:
    """A context manager; leaving it kills all members."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed = threading.Condition()
        self.members: dict[str, Member] = {}
        self._wrong: SoakError | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "job"))
        self._listener.listen()
        self._listener.settimeout(HANG_S)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for member in list(self.members.values()):
            self.kill(member.name)
        self._listener.close()

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def start(
        self,
        name: str,
        module: str,
        config: dict[str, Any],
        popen: Popen = subprocess.Popen,
        is_warm: bool = True,
        **environment: str,
    ) -> Member:
        """Starts ``module.main(link, **config)`` as a member, also in the place of another one.

        One that is not warm starts later, and heeds all of its environment from the begin.
        """
        log = self.folder / f"{name.replace(' ', '-')}.log"
        script = (
            f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
            f"from soak.link import Link; import {module} as module\n"
            f"module.main(Link({str(self.folder / 'job')!r}), **{config!r})"
        )
        with log.open("a") as file:
            starter = popen(
                warm_command(script) if is_warm else [sys.executable, "-c", script],
                env=clean_environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                text=True,
            )
        try:
            accepted, _ = self._listener.accept()
        except TimeoutError:
            text = f"{name} did not start:\n{log.read_text()}"
            raise SoakError(text, Failure.HANG) from None
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("3i", credentials)
        member = Member(name, pid, Connection(accepted.detach()), starter, log)
        with self.changed:
            self.members[name] = member
        member.reader = threading.Thread(target=self._read, args=(member,), daemon=True)
        member.reader.start()
        return member

    def kill(self, name: str) -> None:
        """SIGKILL; the member is forgotten when it is gone, and all that it said has been read."""
        with self.changed:
            member = self.members.pop(name)
        member.may_end = True
        with contextlib.suppress(ProcessLookupError):
            member.signal(signal.SIGKILL)
        member.starter.wait()
        member.reader.join()

    def wait(
        self,
        what: str,
        holds: Callable[[], Any],
        limit_s: float = HANG_S,
        errors: Sequence[str] = (),
    ) -> None:
        """Until ``holds()``, which is asked under the lock.

        Raises SoakError if a member has ended that may not, or has reported one of ``errors``.
        """
        deadline = time.monotonic() + limit_s
        with self.changed:
            while True:
                self._check(what, errors)
                if holds():
                    return
                if time.monotonic() > deadline:
                    break
                self.changed.wait(0.1)
        raise self.hang(f"{what}: not within {limit_s:g} s")

    def hang(self, text: str) -> SoakError:
        """The error of this text, with what the members do."""
        with self.changed:
            members = list(self.members.values())
        return SoakError(f"{text}\n{_stacks(members)}", Failure.HANG)

    def _check(self, what: str, errors: Sequence[str]) -> None:
        if self._wrong is not None:
            raise self._wrong
        for member in self.members.values():
            if member.has_ended and not member.may_end:
                raise SoakError(f"{what}: {_story(member, 'has ended')}")
            for kind, value in member.reports:
                if kind in errors:
                    failure = FAILURES.get(kind, Failure.OTHER)
                    raise SoakError(f"{what}: {member.name}: {kind}: {value}", failure)

    def wait_for_progress(self, what: str, steps: int = 3, errors: Sequence[str] = ()) -> None:
        """Until all members have come so much further; ``errors`` as for `wait`."""
        with self.changed:
            goals = {name: m.progress + steps for name, m in self.members.items()}
        self.wait(
            what,
            lambda: all(self.members[name].progress >= goal for name, goal in goals.items()),
            errors=errors,
        )

    def reported(self, kind: str) -> Iterator[Member]:
        """Members that have said so, and nobody has dealt with it. Under the lock."""
        return (m for m in self.members.values() if any(k == kind for k, _ in m.reports))

    def take(self, member: Member, kind: str) -> Any:
        """What the member has reported of this kind, the oldest."""
        with self.changed:
            report = next(r for r in member.reports if r[0] == kind)
            member.reports.remove(report)
        return report[1]

    def _read(self, member: Member) -> None:
        try:
            while True:
                kind, value = member.connection.recv()
                with self.changed:
                    if kind == "progress":
                        member.progress, member.detail = value
                    elif kind == "wrong":
                        failure, text = value
                        error = SoakError(f"{member.name}: {text}", Failure(failure))
                        self._wrong = self._wrong or error
                    else:
                        member.reports.append((kind, value))
                    self.changed.notify_all()
        except (EOFError, OSError):
            with self.changed:
                member.has_ended = True
                self.changed.notify_all()


def _stacks(members: list[Member]) -> str:
    """What the members wait for, by `dmlcomm inspect`, and their stacks."""
    inspect = subprocess.run(
        [sys.executable, "-m", "dmlcomm", "inspect"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    written = {member: len(_log(member)) for member in members if not member.has_ended}
    for member in written:
        with contextlib.suppress(ProcessLookupError):
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGUSR1)

    def have_stacks() -> bool:
        return all(
            member.has_ended or any(entry in _log(member)[begin:] for entry in ENTRIES)
            for member, begin in written.items()
        )

    # A member that hangs in the kernel writes none.
    with contextlib.suppress(AssertionError):
        eventually(have_stacks, "the stacks of all members", STACKS_S)
    stories = [_story(m, "has ended" if m.has_ended else "was running") for m in members]
    return "\n".join([inspect.stdout, *stories])


def _log(member: Member) -> str:
    return member.log.read_text(errors="replace")


def _story(member: Member, state: str) -> str:
    log = _log(member)[-6000:]
    reports = "".join(f"\n  {kind}: {value}" for kind, value in member.reports)
    return f"--- {member.name} (pid {member.pid}) {state}, at {member.progress}{reports}\n{log}"
