"""Which schedule is the fastest for a training: each is tried for some steps."""

import statistics
import time

import torch
import torch.distributed as dist

from dmlcomm.log import get_logger

# The order of trials. The first one is the usual one: another must be faster by more than GAIN.
CANDIDATES = ("plain", "cross", "dear")
GAIN = 0.02
WARM_UP = 3  # steps: the first deferred one has nothing to wait for, and sizes are new
STEPS = 7


class ScheduleChoice:
    """Times steps, and decides with all ranks.

    Args:
        process_group: all of its ranks make the same steps.
        device: on which the group communicates.
    """

    def __init__(self, process_group: dist.ProcessGroup, device: torch.device) -> None:
        self._process_group = process_group
        self._device = device
        self._seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
        self._current = CANDIDATES[0]
        self._steps = -1  # the first step learns
        self._last: float | None = None
        self.has_ended = False

    def after_step(self) -> str | None:
        """A step has ended.

        Returns:
            The schedule of the next step if it changes, or is final; else None.
        """
        now = time.perf_counter()
        if self._last is not None and self._steps >= WARM_UP:
            self._seconds[self._current].append(now - self._last)
        self._last = now
        self._steps += 1
        if self._steps < WARM_UP + STEPS:
            return None
        self._steps = 0
        tried = CANDIDATES.index(self._current) + 1
        self._current = CANDIDATES[tried] if tried < len(CANDIDATES) else self._decide()
        # The next step has to wait for what was on its way.
        self._last = None
        return self._current

    def _decide(self) -> str:
        self.has_ended = True
        own = [round(statistics.median(self._seconds[name]) * 1e9) for name in CANDIDATES]
        slowest_ns = torch.tensor(own, dtype=torch.int64, device=self._device)
        dist.all_reduce(slowest_ns, dist.ReduceOp.MAX, group=self._process_group)
        seconds = [value / 1e9 for value in slowest_ns.tolist()]
        return choose(dict(zip(CANDIDATES, seconds, strict=True)))


def choose(seconds: dict[str, float]) -> str:
    """The schedule to keep, by the time of a step with each of `CANDIDATES`."""
    usual = CANDIDATES[0]
    best = min(seconds, key=lambda name: seconds[name])
    if seconds[best] > (1 - GAIN) * seconds[usual]:
        best = usual
    times = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in seconds.items())
    get_logger().info("DistributedOptimizer: a step takes %s: %s is kept", times, best)
    return best
