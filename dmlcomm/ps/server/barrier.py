"""The barrier of all live workers."""

import threading
import time
from collections.abc import Callable

from dmlcomm.ps.protocol import LIVENESS_INTERVAL_S


class Barrier:
    """Passes when every live worker has come, and all that the job expects have registered.

    A worker that dies is not waited for. Requests may be repeated: a ticket counts once.

    Args:
        live_workers: who has to come.
        num_missing: how many have not registered yet.
    """

    def __init__(
        self, live_workers: Callable[[], set[int]], num_missing: Callable[[], int]
    ) -> None:
        self._live_workers = live_workers
        self._num_missing = num_missing
        self._changed = threading.Condition()
        self._waiting: dict[int, int] = {}  # worker -> ticket
        self._passed: dict[int, int] = {}  # worker -> its last ticket that has passed
        self._closed = False

    def arrive(self, worker: int, ticket: int, wait_s: float) -> bool:
        """True once the barrier has passed; False when the time is over: ask again."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            if self._passed.get(worker) != ticket:
                self._waiting[worker] = ticket
            while self._passed.get(worker) != ticket:
                if not self._num_missing() and self._live_workers() <= self._waiting.keys():
                    self._passed.update(self._waiting)
                    self._waiting.clear()
                    self._changed.notify_all()
                    return True
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._closed:
                    return False
                # Nobody notifies when a worker dies.
                self._changed.wait(min(remaining, LIVENESS_INTERVAL_S))
            return True

    def withdraw(self, worker: int, ticket: int) -> None:
        """The worker waits elsewhere."""
        with self._changed:
            if self._waiting.get(worker) == ticket:
                del self._waiting[worker]

    def forget(self) -> None:
        """Nobody has come yet."""
        with self._changed:
            self._waiting.clear()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def missing(self) -> list[int]:
        """Live workers that have not come."""
        with self._changed:
            return sorted(self._live_workers() - self._waiting.keys())
