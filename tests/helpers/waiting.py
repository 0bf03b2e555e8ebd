"""Waits that end as soon as what they wait for is seen, and never later than a deadline."""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0


def eventually(holds: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Asks again and again until the answer is true; that answer."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if answer := holds():
            return answer
        threading.Event().wait(0.02)
    raise AssertionError(f"{what} did not happen within {deadline_s:g} s")


def until_asleep(pid: int, thread_id: int | None = None) -> None:
    """Waits until a thread (default: the main one) sleeps, as it does while it waits for something.

    Twice in a row: once could be for the interpreter's lock.
    """
    task = Path(f"/proc/{pid}/task/{thread_id or pid}")
    looks: deque[bool] = deque(maxlen=2)

    def sleeps() -> bool:
        looks.append(thread_state(task) == "S")
        return len(looks) == 2 and all(looks)

    eventually(sleeps, f"thread {task.name} of process {pid} sleeping")


def thread_state(task: Path) -> str:
    """The kernel's letter for it, of a folder in /proc/<pid>/task."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
