"""Bytes per second of what has counters of bytes."""

import threading
import time
from collections.abc import Hashable, Mapping
from typing import Any

# Readings of counters are this far apart.
RATE_INTERVAL_S = 1.0

Counters = tuple[int, int]  # of bytes, one of each direction


class Rates:
    """Compares readings of counters. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._last: dict[Hashable, Counters] = {}
        self._rates: dict[Hashable, tuple[float, float]] = {}

    def read(self, counters: Mapping[Any, Counters]) -> None:
        """The rates are then those since the call before."""
        now = time.monotonic()
        with self._lock:
            seconds = max(now - self._read_at, 1e-3)
            self._rates = {
                name: _rates(self._last.get(name, new), new, seconds)
                for name, new in counters.items()
            }
            self._read_at, self._last = now, dict(counters)

    def of(self, name: Hashable) -> tuple[float, float]:
        """0 for what has had no two readings."""
        with self._lock:
            return self._rates.get(name, (0.0, 0.0))


def _rates(last: Counters, new: Counters, seconds: float) -> tuple[float, float]:
    # A counter begins anew with its connection.
    return max(0, new[0] - last[0]) / seconds, max(0, new[1] - last[1]) / seconds
