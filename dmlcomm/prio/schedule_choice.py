"""Which schedule is the fastest for a training: each is tried for some steps, again and again."""

import statistics
import time
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from dmlcomm.log import get_logger

# The order of a round. The first one is the usual one: another must be faster by more than GAIN.
CANDIDATES = ("plain", "cross", "dear")
GAIN = 0.02
# The first round does not count: the engine still tries algorithms, and sizes are new.
ROUNDS = 4
# Of a turn; the first ones do not count: memory is new, and a deferred schedule has nothing to
# wait for.
STEPS = 7
SKIPPED = 2
# Of all rounds. The usual schedule comes once more, so each other turn is between two of it.
TURNS = (*CANDIDATES * ROUNDS, CANDIDATES[0])


class ScheduleChoice:
    """Times steps of all candidates in turns, and decides with all ranks.

    Args:
        process_group: all of its ranks make the same steps.
        device: on which the group communicates.
    """

    def __init__(self, process_group: dist.ProcessGroup, device: torch.device) -> None:
        self._process_group = process_group
        self._device = device
        self._turns: list[float] = []  # seconds of a step
        self._seconds: list[float] = []  # of the steps of this turn that count
        self._steps = -1  # the first step learns
        self._last: float | None = None
        self.has_ended = False

    def after_step(self) -> str | None:
        """A step has ended.

        Returns:
            The schedule of the next step if it changes, or is final; else None.
        """
        now = time.perf_counter()
        if self._last is not None and self._steps >= SKIPPED:
            self._seconds.append(now - self._last)
        self._last = now
        self._steps += 1
        if self._steps < STEPS:
            return None
        self._turns.append(statistics.median(self._seconds))
        self._seconds, self._steps = [], 0
        # The next step has to wait for what was on its way.
        self._last = None
        return TURNS[len(self._turns)] if len(self._turns) < len(TURNS) else self._decide()

    def _decide(self) -> str:
        self.has_ended = True
        own = [round(seconds * 1e9) for seconds in self._turns]
        slowest_ns = torch.tensor(own, dtype=torch.int64, device=self._device)
        dist.all_reduce(slowest_ns, dist.ReduceOp.MAX, group=self._process_group)
        return choose([value / 1e9 for value in slowest_ns.tolist()])


def choose(turns: Sequence[float]) -> str:
    """The schedule to keep: the usual one if no other is faster by more than `GAIN`.

    A machine may be slower now than a moment ago. So a turn is compared with what the usual
    schedule takes in its place, between its turns before and after. The median of the rounds
    counts.

    Args:
        turns: the time of a step in each of `TURNS`.
    """
    usual, count = CANDIDATES[0], len(CANDIDATES)
    ratios = {
        name: statistics.median(
            turns[begin + place] / _between(turns[begin], turns[begin + count], place / count)
            for begin in range(count, len(turns) - 1, count)
        )
        for place, name in enumerate(CANDIDATES)
        if name != usual
    }
    best = min(ratios, key=lambda name: ratios[name])
    kept = best if ratios[best] < 1 - GAIN else usual
    _log(kept, statistics.median(turns[count::count]), ratios)
    return kept


def _between(before: float, after: float, share: float) -> float:
    return (1 - share) * before + share * after


def _log(kept: str, usual_s: float, ratios: Mapping[str, float]) -> None:
    others = ", ".join(f"{name} {ratio:.3f} times that" for name, ratio in ratios.items())
    usual = f"{CANDIDATES[0]} {usual_s * 1e3:.2f} ms"
    get_logger().info("DistributedOptimizer: a step takes %s, %s: %s is kept", usual, others, kept)
