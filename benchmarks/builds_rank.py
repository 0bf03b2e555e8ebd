"""A rank of ``benchmarks.builds``, run as a script: no other module of this checkout is loaded.

It reads lines "bytes iterations" and prints for each the median time of an all_reduce in
microseconds. Between lines it sleeps.
"""

import statistics
import sys
import time
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

import dmlcomm

WARMUP = 2


@cache
def _tensor(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes // 4)


def median_us(num_bytes: int, iterations: int) -> float:
    data = _tensor(num_bytes)
    seconds = []
    for _ in range(WARMUP + iterations):
        data.fill_(1)
        begin = time.perf_counter()
        dist.all_reduce(data)
        seconds.append(time.perf_counter() - begin)
        assert data[0] == data[-1] == dist.get_world_size(), "a wrong sum"
    return statistics.median(seconds[WARMUP:]) * 1e6


def main() -> None:
    rank, num_ranks, store, checkout = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    loaded = Path(dmlcomm.__file__).resolve().parents[1]
    if loaded != Path(checkout).resolve():
        sys.exit(f"rank {rank} loaded dmlcomm of {loaded}, not of {checkout}")
    torch.set_num_threads(1)
    dist.init_process_group(
        "dmlcomm",
        store=dist.FileStore(store, num_ranks),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=60),
    )
    print("ready", flush=True)
    for line in sys.stdin:
        print(median_us(*map(int, line.split())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
