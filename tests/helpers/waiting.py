"""Waits that end as soon as what they wait for is seen, and never later than a deadline."""

import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 60.0


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """Asks again and again until the answer is true; that answer."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if answer := holds():
            return answer
        threading.Event().wait(0.02)
    raise AssertionError(f"{what} did not happen within {DEADLINE_S:g} s")
