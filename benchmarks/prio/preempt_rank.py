"""One rank of `benchmarks.prio.preempt`: rank 0 prints medians of seconds.

preempt_rank.py CASE BARRIER      a JSON object, a file
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

import dmlcomm
from benchmarks.barrier import Barrier, open_barrier
from benchmarks.lab_worker import end, over_ranks
from dmlcomm.prio.ticket import DEFAULT_TICKET

TIMEOUT = timedelta(minutes=5)
URGENT = 0


@dataclass(frozen=True)
class Case:
    """Sizes in bytes; see `benchmarks.prio.settings`."""

    large: int
    small: int
    delay_s: float
    rounds: int


class Measurement:
    """Tensors of ones, which are reduced alone and beside each other."""

    def __init__(self, case: Case, group: dist.ProcessGroup, barrier: Barrier) -> None:
        self._case = case
        self._group = group
        self._barrier = barrier
        self._large = torch.ones(case.large // 4)
        self._small = torch.ones(case.small // 4)
        self.wrong = 0
        self.seconds: dict[str, list[float]] = {}

    def run(self) -> None:
        for _ in range(self._case.rounds + 1):  # the first is not counted
            self._apart("small_alone", self._reduce_small)
            self._apart("large_alone", lambda: self._start_large().wait())
            self._together("beside", URGENT)
            self._together("behind", DEFAULT_TICKET)

    def _apart(self, name: str, reduce: Callable[[], None]) -> None:
        self._large.fill_(1)
        self._barrier.wait()
        begin = time.perf_counter()
        reduce()
        self._note(name, begin)
        self._barrier.leave()

    def _together(self, how: str, ticket: int) -> None:
        self._large.fill_(1)
        self._barrier.wait()
        begin = time.perf_counter()
        work = self._start_large()
        time.sleep(self._case.delay_s)
        small_begin = time.perf_counter()
        with dmlcomm.ticket(ticket):
            self._reduce_small()
        self._note(f"small_{how}", small_begin)
        large_s = time.perf_counter() - begin if work.is_completed() else None
        work.wait()
        self._note(f"both_{how}", begin)
        self.seconds.setdefault(f"large_{how}", []).append(
            large_s or self.seconds[f"both_{how}"][-1]
        )
        self._barrier.leave()
        self.wrong += int((self._large != dist.get_world_size()).sum())

    def _start_large(self) -> dist.Work:
        return dist.all_reduce(self._large, group=self._group, async_op=True)

    def _reduce_small(self) -> None:
        self._small.fill_(1)
        dist.all_reduce(self._small, group=self._group)

    def _note(self, name: str, begin: float) -> None:
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    group = dist.new_group(backend="dmlcomm", timeout=TIMEOUT)
    measurement = Measurement(
        Case(**json.loads(sys.argv[1])), group, open_barrier(sys.argv[2], dist.get_rank())
    )
    measurement.run()
    found = {}
    for name, seconds in measurement.seconds.items():
        slowest, _ = over_ranks(seconds[1:], 0)
        found[name] = statistics.median(slowest.tolist())
    _, found["wrong"] = over_ranks([0.0], measurement.wrong)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end()
