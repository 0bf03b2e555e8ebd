"""One worker of the training benchmark: replays iterations on every host of a lab.

rank.py MODEL BATCHES FLOPS SCALE ITERATIONS BACKEND GROUPING BARRIER

BATCHES is a comma list, BARRIER a file.

Computing is waited for, as if a GPU did it: the cores of this machine are busy emulating the
others. Rank 0 prints one JSON object per batch.
"""

import json
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.barrier import Barrier, open_barrier
from benchmarks.lab_worker import end, over_ranks
from benchmarks.training.models import MODELS
from benchmarks.training.plan import Plan, plan

TIMEOUT = timedelta(minutes=10)
WARMUP = 1


class Replay:
    """Iterations with real gradients, whose values say whether their sums are right."""

    def __init__(self, iteration: Plan, barrier: Barrier):
        self._plan = iteration
        self._barrier = barrier
        self._gradients = [torch.empty(bucket.elements) for bucket in iteration.buckets]

    def run(self, number: int) -> float:
        """Seconds of one iteration on this rank."""
        for gradient in self._gradients:
            gradient.fill_(_gradient_of(dist.get_rank(), number))
        self._barrier.wait()
        begin = time.perf_counter()
        works = []
        for bucket, gradient in zip(self._plan.buckets, self._gradients, strict=True):
            _wait_until(begin + bucket.ready_s)
            works.append(dist.all_reduce(gradient, async_op=True))
        for work in works:
            work.wait()
        seconds = time.perf_counter() - begin
        self._barrier.leave()
        return seconds

    def wrong(self, number: int) -> int:
        """Elements of the last iteration's sums that are not exact."""
        total = sum(_gradient_of(rank, number) for rank in range(dist.get_world_size()))
        return sum(int((gradient != total).sum()) for gradient in self._gradients)


def _gradient_of(rank: int, iteration: int) -> float:
    return float(rank + 1 + iteration)


def _wait_until(moment: float) -> None:
    if (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


def measure(iteration: Plan, iterations: int, barrier: Barrier) -> dict:
    """``bct_s`` is the median over iterations of the slowest rank, after those to warm up."""
    replay = Replay(iteration, barrier)
    seconds, wrong = [], 0
    for number in range(WARMUP + iterations):
        seconds.append(replay.run(number))
        wrong += replay.wrong(number)
    slowest, total_wrong = over_ranks(seconds[WARMUP:], wrong)
    return {
        "bct_s": statistics.median(slowest.tolist()),
        "wrong": total_wrong,
        "iterations": len(slowest),
    }


def main() -> None:
    model, batches, flops, scale, iterations, backend, grouping, barrier_path = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=TIMEOUT)
    barrier = open_barrier(barrier_path, dist.get_rank())
    for batch in map(int, batches.split(",")):
        iteration = plan(MODELS[model](), batch, float(flops), float(scale), grouping)
        result = measure(iteration, int(iterations), barrier)
        if dist.get_rank() == 0:
            print(json.dumps({"batch": batch} | result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end()
