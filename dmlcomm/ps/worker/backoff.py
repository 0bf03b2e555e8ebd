"""Attempts that are repeated until one succeeds, or the time is over."""

import threading
import time

from dmlcomm import errors
from dmlcomm.log import get_logger
from dmlcomm.ps.protocol import PROGRESS_INTERVAL_S

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0


class Backoff:
    """Waits longer and longer between attempts, says so, and gives up after a time.

    Raises, when the time is over, the error that was the reason to wait.
    """

    def __init__(self, limit_s: float, what: str) -> None:
        self._begin = time.monotonic()
        self._limit_s = limit_s
        self._what = what
        self._backoff_s = FIRST_BACKOFF_S
        self._next_line = self._begin + PROGRESS_INTERVAL_S

    def wait(self, problem: errors.PsError | None) -> None:
        now = time.monotonic()
        if now + self._backoff_s > self._begin + self._limit_s:
            raise problem or errors.PsConnectionError(
                f"{self._what}: not all there after {self._limit_s:g} s"
            )
        if now > self._next_line:
            self._next_line = now + PROGRESS_INTERVAL_S
            seconds = now - self._begin
            get_logger().warning("waiting for %s since %.0f s: %s", self._what, seconds, problem)
        threading.Event().wait(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
