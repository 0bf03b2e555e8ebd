"""Whether processes that live long hold more and more.

growth = Growth()
growth.note({"server 0": pid, "worker 0": pid})  # after each fault
growth.check()
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import psutil

from soak.faults import Failure, SoakError
from soak.members import Usage

# Fewer tell nothing: sizes are random, and memory of the first ones is kept for later.
LEAST_SAMPLES = 30
# The first part of a life, in which a process gets what it keeps.
WARM_UP = 1 / 3
# What the line through the samples of the rest may rise by, from its begin to its end.
MOST_DESCRIPTORS = MOST_THREADS = 4
MOST_BYTES = 64 << 20


class Growth:
    """Samples of processes, by name and process id: who takes the place of another begins anew."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], list[Usage]] = defaultdict(list)

    def note(self, processes: Mapping[str, int]) -> None:
        for name, pid in processes.items():
            try:
                self.add(name, pid, Usage.of(pid))
            except psutil.NoSuchProcess:
                continue

    def add(self, name: str, pid: int, usage: Usage) -> None:
        self._samples[name, pid].append(usage)

    def report(self) -> list[str]:
        """Lines, of those that lived long."""
        return [
            f"{name} (pid {pid}), {len(samples)} faults: {_text(_rises(samples))}"
            for (name, pid), samples in self._samples.items()
            if len(samples) >= LEAST_SAMPLES
        ]

    def check(self) -> None:
        """Raises SoakError, of a leak."""
        for (name, pid), samples in self._samples.items():
            if len(samples) < LEAST_SAMPLES:
                continue
            rises = _rises(samples)
            descriptors, threads, resident = rises
            if descriptors > MOST_DESCRIPTORS or threads > MOST_THREADS or resident > MOST_BYTES:
                text = f"{name} (pid {pid}) holds more and more: {_text(rises)}"
                raise SoakError(text, Failure.LEAK)


def _rises(samples: Sequence[Usage]) -> tuple[float, float, float]:
    """Of descriptors, threads and resident bytes, after the warm-up."""
    late = samples[int(len(samples) * WARM_UP) :]
    return (
        _rise([usage.descriptors for usage in late]),
        _rise([usage.threads for usage in late]),
        _rise([usage.resident_bytes for usage in late]),
    )


def _rise(values: Sequence[float]) -> float:
    """Of the line through the values that has the least squares, from the first to the last."""
    line = statistics.linear_regression(range(len(values)), values)
    return line.slope * (len(values) - 1)


def _text(rises: tuple[float, float, float]) -> str:
    descriptors, threads, resident = rises
    return (
        f"{descriptors:+.1f} descriptors, {threads:+.1f} threads, {resident / 1e6:+.1f} MB "
        f"after the first third"
    )
