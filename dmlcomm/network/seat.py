"""A process's seat at the arbiter of its host: the proxy, which shares NICs among jobs.

A seat is memory that the engine and the arbiter share (csrc/transport/job_seat.h), and a connection
to the proxy, by which that knows how long it is taken. Without a proxy nothing is arbitrated. One
that dies lets everybody send as they like; when one answers there again, the seat is taken anew.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.network import proxy_socket

ANSWER_TIMEOUT_S = 10.0
# Between two attempts to take a seat at a proxy that was started again.
RETURN_INTERVAL_S = 1.0


def priority_of(given: int | None) -> int:
    """Of a job: what it was given, else DMLCOMM_JOB_PRIORITY. Raises ValueError."""
    if given is None:
        configured: Any = _core.config()["job_priority"]
        return _core.DEFAULT_PRIORITY if configured is None else int(configured)
    if type(given) is not int or not 0 <= given <= _core.MAX_PRIORITY:
        raise ValueError(
            f"priority={given!r}; expected a whole number from 0, which goes first, to "
            f"{_core.MAX_PRIORITY}"
        )
    return given


def take(job: str | Callable[[], str], priority: int, proxy: str | None = None) -> "Seat | None":
    """A seat for this process of a job; None where no proxy answers.

    Args:
        job: its name, or what finds it out where there is a proxy.
        proxy: "auto", "none" or a path. Default: DMLCOMM_PROXY.

    Raises:
        PsRefusedError: the proxy does not admit the job; the text says why.
    """
    setting = str(_core.config()["proxy"]) if proxy is None else proxy
    for path in proxy_socket.paths(setting):
        if not os.path.exists(path):
            continue
        try:
            seat = Seat(job if isinstance(job, str) else job(), priority, path)
            seat.take()
        except (OSError, ValueError) as error:
            get_logger().info("no seat at the proxy at %s: %s", path, error)
            continue
        except errors.PsRefusedError as error:
            if setting != proxy_socket.AUTO or isinstance(error, NotAdmittedError):
                raise
            get_logger().info("no seat: %s", error)
            continue
        return seat
    return None


class NotAdmittedError(errors.PsRefusedError):
    """The host has no place for the job: that it goes without the proxy would not help others."""


class Seat:
    """Taken from `take` until `close`, by a process of one job.

    Attributes:
        memory: what the engine shares with the arbiter.
    """

    def __init__(self, job: str, priority: int, path: str) -> None:
        self.memory = _core.JobSeat()
        self._request = {"seat": job, "priority": priority}
        self._path = path
        self._closed = threading.Event()
        self._connection: socket.socket | None = None

    def take(self) -> None:
        """Raises OSError, ValueError: nothing that knows seats answers. PsRefusedError."""
        self._sit_down()
        threading.Thread(target=self._keep, name="dmlcomm-seat", daemon=True).start()

    def check(self) -> None:
        """Raises NotAdmittedError once the job has lost its place on this host."""
        if self.memory.reason:
            raise NotAdmittedError(self.memory.reason)

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _sit_down(self) -> None:
        connection = proxy_socket.connect(self._path, ANSWER_TIMEOUT_S)
        try:
            answer = proxy_socket.exchange(connection, self._request, [self.memory.fileno()])
            if "error" in answer:
                kind = NotAdmittedError if answer.get("full") else errors.PsRefusedError
                raise kind(f"the proxy at {self._path}: {answer['error']}")
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        if self._closed.is_set():
            self.close()

    def _keep(self) -> None:
        while not self._closed.is_set():
            self._wait_for_end()
            was_refused = False
            while not self._closed.wait(RETURN_INTERVAL_S):
                try:
                    self.check()
                    self._sit_down()
                    get_logger().info("took the seat at the proxy at %s again", self._path)
                    break
                except NotAdmittedError as error:
                    if self.memory.reason:
                        get_logger().error("%s", error)
                        return
                    if not was_refused:
                        get_logger().warning("%s; this job goes on, and asks again", error)
                    was_refused = True
                except (OSError, ValueError, errors.PsError) as error:
                    get_logger().debug("no seat: %s", error)

    def _wait_for_end(self) -> None:
        """Until the proxy has gone, or has taken the place away, or this seat is closed."""
        assert self._connection is not None
        with self._connection as connection:
            if self._closed.is_set():
                return
            with contextlib.suppress(OSError, ValueError):
                get_logger().error("%s", proxy_socket.read_message(connection)["error"])
