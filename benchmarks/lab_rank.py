"""One rank of ``benchmarks.lab_run``: started on every host of the lab, rank 0 prints the results.

lab_rank.py CASES BACKENDS BARRIER      a JSON list of cases, a comma list, a file

A backend is one of torch, or "dmlcomm:ALGORITHM", which has that algorithm for all_reduce.
"""

import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

import dmlcomm
from benchmarks import operations
from benchmarks.barrier import Barrier, open_barrier
from benchmarks.lab_worker import end, over_ranks
from benchmarks.operations import OPERATIONS

OPERATION = OPERATIONS["all_reduce"]
TIMEOUT = timedelta(minutes=5)
SMALL_BESIDE = 8  # small operations beside a large one


@dataclass(frozen=True)
class Case:
    """A tensor of ``size`` bytes per rank, in ``buckets`` equal parts that are started at once.

    While it is reduced, tensors of ``beside`` bytes are, one after the other (0: none). The first
    ``warm_up`` iterations are not counted. With ``barriers``, ranks meet at a barrier of the
    backend before each iteration, as well as at the benchmark's own.
    """

    size: int
    iterations: int
    buckets: int = 1
    beside: int = 0
    warm_up: int = 0
    barriers: bool = False


def main() -> None:
    cases = [Case(**case) for case in json.loads(sys.argv[1])]
    backends = sys.argv[2].split(",")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    groups = {backend: _new_group(backend) for backend in backends}
    barrier = open_barrier(sys.argv[3], dist.get_rank())
    for case in cases:
        for result in (measure_beside if case.beside else measure)(groups, case, barrier):
            if dist.get_rank() == 0:
                print(json.dumps(result), flush=True)
    for group in groups.values():
        dist.destroy_process_group(group)
    dist.destroy_process_group()


def _new_group(name: str) -> dist.ProcessGroup:
    backend, _, algorithm = name.partition(":")
    options = dmlcomm.Options(algorithm=f"all_reduce={algorithm}") if algorithm else None
    return dist.new_group(backend=backend, timeout=TIMEOUT, pg_options=options)


def measure(groups: dict[str, dist.ProcessGroup], case: Case, barrier: Barrier) -> list[dict]:
    """Seconds of every iteration by backend, in turns, after one that is verified.

    Each turn has another order: no backend always follows the same one.
    """
    sized = operations.Case("all_reduce", case.size, torch.float32, dist.get_world_size())
    buffers = OPERATION.buffers(sized, dist.get_rank())
    seconds: dict[str, list[float]] = {backend: [] for backend in groups}
    wrong = {}
    for backend, group in groups.items():
        OPERATION.fill(buffers, sized, dist.get_rank(), seed=1)
        _all_reduce(buffers.output, case.buckets, group)
        wrong[backend] = OPERATION.count_wrong(buffers, sized, dist.get_rank(), seed=1)
    orders = random.Random(1)  # the same on all ranks
    for iteration in range(-case.warm_up, case.iterations):
        for backend in orders.sample(list(groups), len(groups)):
            # Sums of sums would grow beyond what a float holds.
            OPERATION.fill(buffers, sized, dist.get_rank(), seed=1)
            if case.barriers:
                dist.barrier(groups[backend])
            barrier.wait()
            begin = time.perf_counter()
            _all_reduce(buffers.output, case.buckets, groups[backend])
            if iteration >= 0:
                seconds[backend].append(time.perf_counter() - begin)
            barrier.leave()
    return [_slowest(case, backend, seconds[backend], wrong[backend]) for backend in groups]


def measure_beside(
    groups: dict[str, dist.ProcessGroup], case: Case, barrier: Barrier
) -> list[dict]:
    """As `measure`, with the seconds of the small ones: alone, and beside the large one.

    Small ones that begin after the end of the large one do not count.
    """
    large, small = torch.ones(case.size // 4), torch.ones(case.beside // 4)
    names = ("seconds", "small_s", "small_alone_s")
    seconds = {backend: {name: [] for name in names} for backend in groups}
    wrong = dict.fromkeys(groups, 0)
    for turn in range(case.iterations + 1):  # the first is not counted
        for backend, group in groups.items():
            large.fill_(1)
            barrier.wait()
            alone = [_timed_all_reduce(small, group) for _ in range(SMALL_BESIDE)]
            barrier.leave()
            barrier.wait()
            begin = time.perf_counter()
            work = dist.all_reduce(large, group=group, async_op=True)
            beside, large_s = [], None
            for _ in range(SMALL_BESIDE):
                if large_s is None and work.is_completed():
                    large_s = time.perf_counter() - begin
                small_s = _timed_all_reduce(small, group)
                if large_s is None:
                    beside.append(small_s)
            work.wait()
            found = (large_s or time.perf_counter() - begin, statistics.median(beside))
            barrier.leave()
            wrong[backend] += int((large != dist.get_world_size()).sum())
            if turn > 0:
                for name, value in zip(names, (*found, statistics.median(alone)), strict=True):
                    seconds[backend][name].append(value)
    return [
        _slowest(case, backend, found["seconds"], wrong[backend])
        | {name: _slowest(case, backend, found[name], 0)["seconds"] for name in names[1:]}
        for backend, found in seconds.items()
    ]


def _timed_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> float:
    tensor.fill_(1)
    begin = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    return time.perf_counter() - begin


def _all_reduce(tensor: torch.Tensor, buckets: int, group: dist.ProcessGroup) -> None:
    if buckets == 1:
        dist.all_reduce(tensor, group=group)
        return
    works = [dist.all_reduce(b, group=group, async_op=True) for b in tensor.chunk(buckets)]
    for work in works:
        work.wait()


def _slowest(case: Case, backend: str, seconds: list[float], wrong: int) -> dict:
    """One iteration's time is that of the slowest rank."""
    slowest, total_wrong = over_ranks(seconds, wrong)
    return asdict(case) | {
        "backend": backend,
        "seconds": statistics.median(slowest.tolist()),
        "least_s": slowest.min().item(),
        "greatest_s": slowest.max().item(),
        "each_s": slowest.tolist(),
        "wrong": total_wrong,
    }


if __name__ == "__main__":
    main()
    end()
