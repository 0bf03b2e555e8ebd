"""Ends every process of a run, also those that its processes have started and left.

A run puts a mark into the environment of what it starts, and children inherit it. The holder sees
all processes of its lab, and nothing else, in its own /proc.
"""

import contextlib
import os
import select
import signal
from pathlib import Path

RUN_MARK = "DMLCOMM_LAB_RUN"

# How long the kernel may take to end a process that was killed.
DEATH_TIMEOUT_MS = 5_000


def kill_marked(run: str) -> None:
    """Kills all processes of this PID namespace that carry the mark; returns when they are gone.

    A process may fork while this looks, so it looks until it finds none.
    """
    mark = f"{RUN_MARK}={run}".encode()
    while found := [pid for pid in _processes() if _carries(pid, mark)]:
        for pid in found:
            _kill(pid)


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(DEATH_TIMEOUT_MS)
        finally:
            os.close(descriptor)
