"""Seats at the arbiter: who has one, who gets one, and who has to leave for another job."""

import contextlib
import json
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger

STRICT, WEIGHTED = "strict", "weighted"
REFUSE, PREEMPT = "refuse", "preempt"

# Of one user. A seat is a page, a connection and a thread here.
MOST_SEATS = 1024

JobKey = tuple[str, int]  # name, priority
Peer = tuple[int, int]  # process, user

_UNSEEN = 0  # of another PID namespace


@dataclass(frozen=True)
class SeatOptions:
    """How NICs are shared, and how many jobs may share them.

    Attributes:
        sharing: "strict": jobs behind those of the first priority have `floor` together;
            "weighted": a job has twice the share of one of the next priority.
        floor: least share of the jobs behind those of the first priority, together.
        max_jobs: that a host has a place for; 0 is any number.
        when_full: "refuse" a job that comes then, or "preempt" the latest of those of the last
            priority if it comes after the new job's.
        num_classes: of priorities that the fabric tells apart by the DSCP of packets; 0 marks none.

    Raises ValueError.
    """

    sharing: str = STRICT
    floor: float = 0.05
    max_jobs: int = 0
    when_full: str = REFUSE
    num_classes: int = 0

    def __post_init__(self) -> None:
        _check("sharing", self.sharing, (STRICT, WEIGHTED))
        _check("when-full", self.when_full, (REFUSE, PREEMPT))
        if not 0 < self.floor < 1:
            raise ValueError(
                f"--floor {self.floor:g}; expected more than 0, so that no job starves, and below 1"
            )
        if self.max_jobs < 0:
            raise ValueError(
                f"--max-jobs {self.max_jobs}; expected 0, which is any number, or more"
            )
        most = _core.MAX_PRIORITY + 1
        if self.num_classes != 0 and not 2 <= self.num_classes <= most:
            raise ValueError(
                f"--classes {self.num_classes}; expected 2 to {most}, one for each priority, or 0, "
                f"which marks no packets"
            )


def _check(option: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ValueError(f'--{option} "{value}"; expected {" or ".join(legal)}')


class FullError(errors.PsRefusedError):
    """The host has no place for the job."""


@dataclass
class _Seated:
    """A process at one seat."""

    key: JobKey
    process: int
    uid: int
    connection: socket.socket


class Seats:
    """All calls from any thread."""

    def __init__(self, options: SeatOptions) -> None:
        self._options = options
        self._arbiter = _core.Arbiter(
            options.sharing == STRICT, options.floor, num_classes=options.num_classes
        )
        self._lock = threading.Lock()
        self._seated: dict[int, _Seated] = {}  # by number, as they came
        self._closed = False

    def serve(
        self, connection: socket.socket, request: Any, descriptors: list[int], peer: Peer
    ) -> None:
        """Keeps a process's seat for as long as it is connected.

        Raises ValueError, PsRefusedError.
        """
        process, uid = peer
        key = key_of(str(request["seat"]), request.get("priority", _core.DEFAULT_PRIORITY), uid)
        if len(descriptors) != 1:
            raise ValueError(f"{len(descriptors)} descriptors came with a seat; expected one")
        number = self._take(_Seated(key, process, uid, connection), descriptors[0])
        try:
            connection.settimeout(None)
            while connection.recv(4096):
                pass
        except OSError as error:
            get_logger().debug("a seat ends: %s", error)
        finally:
            self._leave(number)

    def take_own(self, name: str, priority: int, uid: int) -> "OwnSeat":
        """For a part of the proxy that sends for a job, which has been admitted."""
        return OwnSeat(self._arbiter, key_of(name, priority, uid))

    def check(self, name: str, priority: int, peer: Peer) -> None:
        """Raises FullError unless the job has a place, or may have one."""
        process, uid = peer
        key = key_of(name, priority, uid)
        with self._lock:
            jobs = self._jobs()
            is_there = any(job.has(key, process) for job in jobs)
            if not is_there and self._is_full(jobs) and self._victim(jobs, priority) is None:
                raise self._refusal(jobs, priority)

    def status(self, user: int | None = None) -> list[dict[str, Any]]:
        """By job, first the one that goes first; plain data. `user`: only that user's jobs."""
        jobs = list(self._arbiter.status())
        if user is None:
            return jobs
        with self._lock:
            keys = {seated.key for seated in self._seated.values() if seated.uid == user}
        return [job for job in jobs if (job["job"], job["priority"]) in keys]

    def close(self) -> None:
        """Nobody is held back any more. Idempotent."""
        self._arbiter.close()
        with self._lock:
            self._closed = True
            for seated in self._seated.values():
                _end(seated.connection)

    def _take(self, seated: _Seated, descriptor: int) -> int:
        number = self._arbiter.add(*seated.key, descriptor)
        try:
            with self._lock:
                self._admit(seated)
                self._seated[number] = seated
                # Before another job takes the place, and says so on the same connection.
                with contextlib.suppress(OSError):
                    seated.connection.sendall(b"{}\n")
        except errors.PsRefusedError:
            self._arbiter.remove(number)
            raise
        return number

    def _jobs(self) -> "list[_Job]":
        """In the order in which they came. With the lock."""
        jobs: list[_Job] = []
        for number, seated in self._seated.items():
            same = [job for job in jobs if job.has(seated.key, seated.process)]
            first = same[0] if same else _Job()
            if not same:
                jobs.append(first)
            first.add(number, seated)
            for other in same[1:]:
                jobs.remove(other)
                first.merge(other)
        return jobs

    def _is_full(self, jobs: "list[_Job]") -> bool:
        return 0 < self._options.max_jobs <= len(jobs)

    def _admit(self, seated: _Seated) -> None:
        if self._closed:
            raise errors.PsRefusedError("this proxy ends")
        if sum(other.uid == seated.uid for other in self._seated.values()) >= MOST_SEATS:
            raise FullError(
                f"user {seated.uid} has {MOST_SEATS} seats at this proxy, the most that one user "
                f"may have; a process has one for each priority: end some of them"
            )
        priority = seated.key[1]
        jobs = self._jobs()
        if any(job.has(seated.key, seated.process) for job in jobs) or not self._is_full(jobs):
            return
        victim = self._victim(jobs, priority)
        if victim is None:
            raise self._refusal(jobs, priority)
        self._preempt(victim, priority)

    def _preempt(self, victim: "_Job", priority: int) -> None:
        reason = (
            f"the proxy of this host gave the place of job {victim.name} (priority "
            f"{victim.priority}) to a job of priority {priority}, as there are places for "
            f"{self._options.max_jobs} (--max-jobs): start the job again when one is free"
        )
        get_logger().warning("%s", reason)
        for key in victim.keys:
            self._arbiter.drop(*key, reason)
        for number in victim.numbers:
            connection = self._seated.pop(number).connection
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"error": reason}).encode() + b"\n")
            _end(connection)

    def _victim(self, jobs: "list[_Job]", priority: int) -> "_Job | None":
        """The latest of those that go last, if that is after `priority`."""
        if self._options.when_full != PREEMPT:
            return None
        last = max(job.priority for job in jobs)
        victims = [job for job in jobs if job.priority == last]
        return victims[-1] if last > priority else None

    def _refusal(self, jobs: "list[_Job]", priority: int) -> FullError:
        others = ", ".join(str(job.priority) for job in jobs)
        advice = "wait until one has ended"
        if self._options.when_full == PREEMPT:
            advice += ", or give this one a smaller priority than one of these"
        return FullError(
            f"this host has places for {self._options.max_jobs} jobs (--max-jobs), taken by those "
            f"of priority {others}; this one has {priority}: {advice}"
        )

    def _leave(self, number: int) -> None:
        self._arbiter.remove(number)
        with self._lock:
            self._seated.pop(number, None)


class _Job:
    """Seats that share a name, or a process: its groups and its clients.

    Attributes:
        numbers: of the seats.
        keys: of the seats.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.keys: dict[JobKey, None] = {}  # in the order in which they came
        self._processes: set[int] = set()

    @property
    def name(self) -> str:
        return next(iter(self.keys))[0]

    @property
    def priority(self) -> int:
        """The first that it has."""
        return min(priority for _, priority in self.keys)

    def has(self, key: JobKey, process: int) -> bool:
        return process in self._processes or any(name == key[0] for name, _ in self.keys)

    def add(self, number: int, seated: _Seated) -> None:
        self.numbers.append(number)
        self.keys[seated.key] = None
        if seated.process != _UNSEEN:
            self._processes.add(seated.process)

    def merge(self, other: "_Job") -> None:
        self.numbers += other.numbers
        self.keys |= other.keys
        self._processes |= other._processes


class OwnSeat:
    """A seat of the proxy's process; `memory` as of `dmlcomm.network.seat.Seat`."""

    def __init__(self, arbiter: "_core.Arbiter", key: JobKey) -> None:
        self.memory = _core.JobSeat()
        self._arbiter = arbiter
        self._number = arbiter.add(*key, self.memory.fileno())

    def close(self) -> None:
        self._arbiter.remove(self._number)


def key_of(name: str, priority: Any, uid: int) -> JobKey:
    """A user's jobs are his own, whatever he calls them. Raises ValueError."""
    if not isinstance(priority, int) or not 0 <= priority <= _core.MAX_PRIORITY:
        raise ValueError(f"priority {priority!r}; expected 0 to {_core.MAX_PRIORITY}")
    return (name if uid == os.getuid() else f"{name} of user {uid}"), priority


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
