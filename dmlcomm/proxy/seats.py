"""Seats at the arbiter: who has one, who gets one, and who has to leave for another job."""

import contextlib
import json
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger

STRICT, WEIGHTED = "strict", "weighted"
REFUSE, PREEMPT = "refuse", "preempt"

JobKey = tuple[str, int]  # name, priority


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

    Raises ValueError.
    """

    sharing: str = STRICT
    floor: float = 0.05
    max_jobs: int = 0
    when_full: str = REFUSE

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


def _check(option: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ValueError(f'--{option} "{value}"; expected {" or ".join(legal)}')


class FullError(errors.PsRefusedError):
    """The host has no place for the job."""


@dataclass
class _Job:
    seats: dict[int, socket.socket] = field(default_factory=dict)  # by number at the arbiter


class Seats:
    """All calls from any thread."""

    def __init__(self, options: SeatOptions) -> None:
        self._options = options
        self._arbiter = _core.Arbiter(options.sharing == STRICT, options.floor)
        self._lock = threading.Lock()
        self._jobs: dict[JobKey, _Job] = {}  # in the order in which they came
        self._closed = False

    def serve(
        self, connection: socket.socket, request: Any, descriptors: list[int], uid: int
    ) -> None:
        """Keeps a process's seat for as long as it is connected.

        Raises ValueError, PsRefusedError.
        """
        key = key_of(str(request["seat"]), request.get("priority", _core.DEFAULT_PRIORITY), uid)
        if len(descriptors) != 1:
            raise ValueError(f"{len(descriptors)} descriptors came with a seat; expected one")
        number = self._arbiter.add(*key, descriptors[0])
        try:
            with self._lock:
                self._admit(key)
                self._jobs.setdefault(key, _Job()).seats[number] = connection
                # Before another job takes the place, and says so on the same connection.
                with contextlib.suppress(OSError):
                    connection.sendall(b"{}\n")
        except errors.PsRefusedError:
            self._arbiter.remove(number)
            raise
        try:
            connection.settimeout(None)
            while connection.recv(4096):
                pass
        except OSError as error:
            get_logger().debug("a seat ends: %s", error)
        finally:
            self._leave(key, number)

    def take_own(self, name: str, priority: int, uid: int) -> "OwnSeat":
        """For a part of the proxy that sends for a job, which has been admitted."""
        return OwnSeat(self._arbiter, key_of(name, priority, uid))

    def check(self, name: str, priority: int, uid: int) -> None:
        """Raises FullError unless the job has a place, or may have one."""
        key = key_of(name, priority, uid)
        with self._lock:
            if self._is_full() and key not in self._jobs and self._victim(priority) is None:
                raise self._refusal(priority)

    def status(self) -> list[dict[str, Any]]:
        """By job, first the one that goes first; plain data."""
        return list(self._arbiter.status())

    def close(self) -> None:
        """Nobody is held back any more. Idempotent."""
        self._arbiter.close()
        with self._lock:
            self._closed = True
            for job in self._jobs.values():
                for connection in job.seats.values():
                    _end(connection)

    def _is_full(self) -> bool:
        return 0 < self._options.max_jobs <= len(self._jobs)

    def _admit(self, key: JobKey) -> None:
        if self._closed:
            raise errors.PsRefusedError("this proxy ends")
        if key in self._jobs or not self._is_full():
            return
        victim = self._victim(key[1])
        if victim is None:
            raise self._refusal(key[1])
        reason = (
            f"the proxy of this host gave the place of job {victim[0]} (priority {victim[1]}) to a "
            f"job of priority {key[1]}, as there are places for {self._options.max_jobs} "
            f"(--max-jobs): start the job again when one is free"
        )
        get_logger().warning("%s", reason)
        self._arbiter.drop(*victim, reason)
        for connection in self._jobs.pop(victim).seats.values():
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"error": reason}).encode() + b"\n")
            _end(connection)

    def _victim(self, priority: int) -> JobKey | None:
        """The latest of those that go last, if that is after `priority`."""
        if self._options.when_full != PREEMPT:
            return None
        last = max(self._jobs, key=lambda key: key[1])[1]
        victims = [key for key in self._jobs if key[1] == last]
        return victims[-1] if last > priority else None

    def _refusal(self, priority: int) -> FullError:
        others = ", ".join(str(own) for _, own in self._jobs)
        advice = "wait until one has ended"
        if self._options.when_full == PREEMPT:
            advice += ", or give this one a smaller priority than one of these"
        return FullError(
            f"this host has places for {self._options.max_jobs} jobs (--max-jobs), taken by those "
            f"of priority {others}; this one has {priority}: {advice}"
        )

    def _leave(self, key: JobKey, number: int) -> None:
        self._arbiter.remove(number)
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                return
            job.seats.pop(number, None)
            if not job.seats:
                del self._jobs[key]


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
