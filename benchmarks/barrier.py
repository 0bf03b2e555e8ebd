"""A barrier that is no backend's, so that none is charged for it."""

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLOT_BYTES = 8
PAUSE_S = 1e-4
LEAVING_PAUSE_S = 2e-3
DEADLINE_S = 600


class Barrier:
    """A counter per rank in shared memory, at which a waiting rank looks again and again.

    Args:
        slots: zeroed memory, the same for all ranks: `SLOT_BYTES` for each.
        pause_s: a rank sleeps so long between two looks; 0: it only yields its core, and begins as
            soon as the last one comes. Where many ranks share few cores those that yield without
            end are behind all others afterwards. `leave` always sleeps, `LEAVING_PAUSE_S`.

    Raises:
        TimeoutError: after `DEADLINE_S`, with the ranks that did not come.
    """

    def __init__(self, slots, rank: int, pause_s: float = 0.0):
        self._slots = memoryview(slots).cast("B").cast("q")
        self._rank = rank
        self._pause_s = pause_s
        self._epoch = 0

    def wait(self) -> None:
        self._meet(self._pause_s)

    def leave(self) -> None:
        """The same behind what is measured: a rank that is done leaves the cores to the others."""
        self._meet(LEAVING_PAUSE_S)

    def _meet(self, pause_s: float) -> None:
        self._epoch += 1
        self._slots[self._rank] = self._epoch
        deadline = time.monotonic() + DEADLINE_S
        while min(self._slots) < self._epoch:
            if time.monotonic() > deadline:
                behind = [rank for rank, epoch in enumerate(self._slots) if epoch < self._epoch]
                raise TimeoutError(f"ranks {behind} did not come to the barrier of a benchmark")
            if pause_s:
                time.sleep(pause_s)
            else:
                os.sched_yield()


@contextmanager
def barrier_file(num_ranks: int) -> Iterator[str]:
    """The memory of a barrier, for ranks that only share the file system: hosts of a lab."""
    with tempfile.NamedTemporaryFile(prefix="dmlcomm-barrier-") as file:
        file.truncate(num_ranks * SLOT_BYTES)
        yield file.name


def open_barrier(path: str, rank: int) -> Barrier:
    """The barrier of a `barrier_file`."""
    with open(path, "r+b") as file:
        return Barrier(mmap.mmap(file.fileno(), 0), rank, PAUSE_S)
