"""One rank of `link_down` and `phases`: repeats an all_reduce and compares all results bit by bit.

repeat_rank.py SIZE ITERATIONS VALUES BARRIER      bytes of float32; a file of `benchmarks.barrier`

VALUES are "random", whose sum depends on the order of adding in its last bits, or "exact": small
whole numbers, whose sum is the same in every order, so ranks may change the algorithm.
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
LEAST_ABOVE_EXACT = 1000


def main() -> None:
    size, iterations, is_exact = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "exact"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    group = dist.new_group(backend="dmlcomm", timeout=TIMEOUT)
    barrier = open_barrier(sys.argv[4], dist.get_rank())
    mine = _input(dist.get_rank(), size // 4, is_exact)
    reference = mine.clone()
    dist.all_reduce(reference, group=group)
    say(wrong=over_ranks([0.0], _wrong(reference, is_exact))[1])
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


def _input(rank: int, count: int, is_exact: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    if is_exact:
        return torch.randint(LEAST_ABOVE_EXACT, (count,), generator=generator).float()
    return torch.randn(count, generator=generator)


def _wrong(result: torch.Tensor, is_exact: bool) -> int:
    """Elements that are further from the exact sum than rounding explains, or not as on rank 0."""
    exact = torch.zeros(result.numel(), dtype=torch.float64)
    magnitude = torch.zeros_like(exact)
    for rank in range(dist.get_world_size()):
        values = _input(rank, result.numel(), is_exact)
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
