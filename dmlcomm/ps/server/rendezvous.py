"""The store in which a worker and a server meet for one data connection."""

import threading
import time


class Rendezvous:
    """Keys and values of one session; a reader waits for the writer. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._failure: str | None = None

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """The value, or None when the time is over. Raises RuntimeError once the meeting failed."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while key not in self._values:
                if self._failure is not None:
                    raise RuntimeError(self._failure)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)
            return self._values[key]

    def fail(self, reason: str) -> None:
        """Ends the wait of every reader, now and later."""
        with self._changed:
            self._failure = self._failure or reason
            self._changed.notify_all()
