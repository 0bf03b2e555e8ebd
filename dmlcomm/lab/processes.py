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
DEATH_TIMEOUT_S = 5.0


def kill_marked(run: str) -> None:
    """Kills all processes of this PID namespace that carry the mark; returns when they are gone.

    A process may fork while this looks, so it looks until it finds none.
    """
    mark = f"{RUN_MARK}={run}".encode()
    while found := [pid for pid in _processes() if _carries(pid, mark)]:
        for pid in found:
            kill(pid, DEATH_TIMEOUT_S)


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended


def kill(pid: int, timeout_s: float) -> bool:
    """Kills a process, and waits for its end; False if the time is over first."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(int(timeout_s * 1000)))
    finally:
        os.close(descriptor)
