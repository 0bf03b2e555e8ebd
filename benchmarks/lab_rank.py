"""One rank of ``benchmarks.lab``: started on every host of the lab, prints what rank 0 gathers.

lab_rank.py BACKENDS SIZES SECONDS BOUNDS      comma lists; sizes in bytes, bounds in seconds
"""

import json
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.lab_worker import end, over_ranks
from benchmarks.operations import OPERATIONS, Case

OPERATION = OPERATIONS["all_reduce"]
MIN_ITERATIONS = 3
MAX_ITERATIONS = 20
TIMEOUT = timedelta(minutes=5)


def main() -> None:
    backends = sys.argv[1].split(",")
    sizes = [int(size) for size in sys.argv[2].split(",")]
    seconds = float(sys.argv[3])
    bounds_s = [float(bound) for bound in sys.argv[4].split(",")]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    groups = {backend: dist.new_group(backend=backend, timeout=TIMEOUT) for backend in backends}
    for size, bound_s in zip(sizes, bounds_s, strict=True):
        iterations = min(max(int(seconds / bound_s), MIN_ITERATIONS), MAX_ITERATIONS)
        for result in measure(groups, size, iterations):
            if dist.get_rank() == 0:
                print(json.dumps(result), flush=True)
    for group in groups.values():
        dist.destroy_process_group(group)
    dist.destroy_process_group()


def measure(groups: dict[str, dist.ProcessGroup], size: int, iterations: int) -> list[dict]:
    """Seconds of every iteration by backend, in turns, after one that is verified."""
    case = Case("all_reduce", size, torch.float32, dist.get_world_size())
    buffers = OPERATION.buffers(case, dist.get_rank())
    seconds: dict[str, list[float]] = {backend: [] for backend in groups}
    wrong = {}
    for backend, group in groups.items():
        OPERATION.fill(buffers, case, dist.get_rank(), seed=1)
        OPERATION.run(buffers, case, group)
        wrong[backend] = OPERATION.count_wrong(buffers, case, dist.get_rank(), seed=1)
    for _ in range(iterations):
        for backend, group in groups.items():
            # Sums of sums would grow beyond what a float holds.
            OPERATION.fill(buffers, case, dist.get_rank(), seed=1)
            dist.barrier()
            begin = time.perf_counter()
            OPERATION.run(buffers, case, group)
            seconds[backend].append(time.perf_counter() - begin)
    return [_slowest(case, backend, seconds[backend], wrong[backend]) for backend in groups]


def _slowest(case: Case, backend: str, seconds: list[float], wrong: int) -> dict:
    """One iteration's time is that of the slowest rank."""
    slowest, total_wrong = over_ranks(seconds, wrong)
    return {
        "backend": backend,
        "size": case.count * case.dtype.itemsize,
        "iterations": len(seconds),
        "seconds": statistics.median(slowest.tolist()),
        "least_s": slowest.min().item(),
        "greatest_s": slowest.max().item(),
        "wrong": total_wrong,
        "congestion": _congestion(),
    }


def _congestion() -> str:
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        return file.read().strip()


if __name__ == "__main__":
    main()
    end()
