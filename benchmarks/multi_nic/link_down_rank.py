"""One rank of `link_down`: repeats an all_reduce and compares all results bit by bit.

link_down_rank.py SIZE ITERATIONS BARRIER      bytes of float32; a file of `benchmarks.barrier`

Rank 0 prints what happens, a line each.
"""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.barrier import open_barrier
from benchmarks.lab_worker import end, over_ranks

TIMEOUT = timedelta(minutes=2)


def main() -> None:
    size, iterations = map(int, sys.argv[1:3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    group = dist.new_group(backend="dmlcomm", timeout=TIMEOUT)
    barrier = open_barrier(sys.argv[3], dist.get_rank())
    mine = _input(dist.get_rank(), size // 4)
    reference = mine.clone()
    dist.all_reduce(reference, group=group)
    say(wrong=over_ranks([0.0], _wrong(reference))[1])
    for number in range(iterations):
        tensor = mine.clone()
        barrier.wait()
        say(begins=number)
        begin = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        seconds, at = time.perf_counter() - begin, time.monotonic()
        barrier.leave()
        slowest, wrong = over_ranks([seconds], _differing(tensor, reference))
        say(ended=number, at=at, seconds=slowest.item(), wrong=wrong)
    dist.destroy_process_group()


def say(**event: float) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(event), flush=True)


def _input(rank: int, count: int) -> torch.Tensor:
    """Values whose sum depends on the order of adding in its last bits."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def _wrong(result: torch.Tensor) -> int:
    """Elements that are further from the exact sum than rounding explains, or not as on rank 0."""
    exact = torch.zeros(result.numel(), dtype=torch.float64)
    magnitude = torch.zeros_like(exact)
    for rank in range(dist.get_world_size()):
        values = _input(rank, result.numel())
        exact += values
        magnitude += values.abs()
    # N - 1 additions, each off by half a unit in the last place of a partial sum at most.
    tolerance = dist.get_world_size() * torch.finfo(torch.float32).eps * magnitude
    wrong = int(((result - exact).abs() > tolerance).sum())
    of_rank_0 = result.clone()
    dist.broadcast(of_rank_0, 0)
    return wrong + _differing(result, of_rank_0)


def _differing(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one.view(torch.int32) != other.view(torch.int32)).sum())


if __name__ == "__main__":
    main()
    end()
