"""Runs the core's operations: in the caller's thread, or behind a future; again after a loss."""

import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from dmlcomm import _core, errors
from dmlcomm.ps.worker.connections import Connections

Result = TypeVar("Result")

# Starts an operation of the core's client; True if the caller waits for it at once.
Start = Callable[[Any, bool], Any]

# An operation that fails again after so many reconnections has another fault than connections: a
# rule that raises, for instance, ends every session.
MAX_RECOVERIES = 3
# Several times per proxy that is lost or returns.
MAX_RECOVERIES_BY_PROXY = 50

# A waiting thread returns to the interpreter this often: for signals, as Ctrl-C.
SLICE_S = 0.5


def nothing() -> None:
    """The result of an operation that only sends."""


@dataclass
class _Running:
    operation: _core.PsOperation
    finish: Callable[[], Any]
    memory: Any  # what has to stay until the end
    what: str
    deadline: float
    timeout_s: float
    before_retry: Callable[[], None] = nothing


class Operations:
    """Starts operations one at a time, waits for them in any thread."""

    def __init__(
        self, connections: Connections, recreate: Callable[[int], None], timeout_s: float
    ) -> None:
        self._connections = connections
        self._recreate = recreate
        self.timeout_s = timeout_s
        # Operations start in the order of calls, one thread at a time.
        self._starting = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[_Running, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._awaits_idle: Callable[[float], None] | None = None
        self._abandoned: list[_Running] = []

    def run(
        self,
        what: str,
        start: Start,
        finish: Callable[[], Result],
        memory: Any = None,
        before_retry: Callable[[], None] = nothing,
    ) -> Result:
        """Starts an operation and waits for it; what `finish` returns then.

        `memory` is what the operation reads and writes, if `finish` does not hold it. After a
        reconnection `before_retry` may raise, and nothing is repeated.
        """
        with self._starting:
            running = self._start(what, start, finish, memory, at_once=True)
            running.before_retry = before_retry
        result: Result = self._complete(running)
        return result

    def run_later(
        self, what: str, start: Start, finish: Callable[[], Result], memory: Any = None
    ) -> "Future[Result]":
        """Starts an operation; the future has what `finish` returns. Futures end in order."""
        future: Future[Result] = Future()
        # Running already: it cannot be cancelled.
        future.set_running_or_notify_cancel()
        with self._starting:
            running = self._start(what, start, finish, memory, at_once=False)
            self._queue.put((running, future))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._finish_all, name="dmlcomm-ps-futures", daemon=True
                )
                self._thread.start()
        return future

    def when_idle(self, action: Callable[[float], None]) -> None:
        """Calls `action` while no operation is under way: now, or before one is started.

        Its argument says how many seconds it may take: operations wait for it.
        """
        with self._starting:
            self._awaits_idle = action
            self._act_if_idle()

    def _act_if_idle(self) -> None:
        """With _starting."""
        core = self._connections.core
        if self._awaits_idle is not None and core is not None and core.idle():
            action, self._awaits_idle = self._awaits_idle, None
            action(self.timeout_s)

    def close(self) -> None:
        """Refuses more, and waits for what was started."""
        with self._starting:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _start(
        self, what: str, start: Start, finish: Callable[[], Any], memory: Any, at_once: bool
    ) -> _Running:
        if self._closed:
            raise errors.PsError(f"{what}: the client is closed")
        timeout_s = self.timeout_s
        deadline = time.monotonic() + timeout_s
        self._act_if_idle()
        operation = start(self._connections.core, at_once)
        return _Running(operation, finish, memory, what, deadline, timeout_s)

    def _finish_all(self) -> None:
        while (item := self._queue.get()) is not None:
            running, future = item
            try:
                result = self._complete(running)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _complete(self, running: _Running) -> Any:
        try:
            self._wait(running)
        except BaseException:
            # It may go on: its memory stays until the core's client is closed.
            self._abandoned.append(running)
            running.operation.abandon()
            raise
        return running.finish()

    def _wait(self, running: _Running) -> None:
        recoveries = 0
        while True:
            try:
                if running.operation.wait(SLICE_S):
                    return
            except ConnectionError as error:
                if self._connections.closed:
                    raise errors.PsError(f"{running.what}: the client was closed") from None
                lost = running.operation.lost()
                if recoveries == self._most_recoveries():
                    raise self._in_vain(running, lost, error) from None
                recoveries += 1
                self._connections.recover(lost, self._recreate, str(error))
                running.before_retry()
                running.operation.retry()
            if time.monotonic() > running.deadline:
                raise self._too_late(running)

    def _most_recoveries(self) -> int:
        return MAX_RECOVERIES_BY_PROXY if self._connections.may_move else MAX_RECOVERIES

    def _in_vain(
        self, running: _Running, lost: list[int], error: ConnectionError
    ) -> errors.PsServerLostError:
        return errors.PsServerLostError(
            f"worker {self._connections.worker}: {running.what} has lost servers {lost} again, "
            f"after {self._most_recoveries()} reconnections: {error}",
            lost,
        )

    def _too_late(self, running: _Running) -> errors.PsTimeoutError:
        return errors.PsTimeoutError(
            f"worker {self._connections.worker}: {running.what} did not end within "
            f"{running.timeout_s:g} s; does another worker not push or call clock? "
            f"`dmlcomm ps status` shows the clocks, Client(timeout_s=...) sets the limit"
        )


def rate(lr: float | None) -> float:
    """None is the rule's own learning rate, which the core is told by NaN. Raises ValueError.

    A server that gets one that it cannot use ends the model for all workers.
    """
    if lr is None:
        return math.nan
    value = float(lr)
    if not 0 <= value < math.inf:
        raise ValueError(
            f"learning rate {value}: expected a finite number, at least 0, or None for the rule's "
            f"own; is it what a scheduler has computed?"
        )
    return value
