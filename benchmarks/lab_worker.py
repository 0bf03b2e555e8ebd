"""What the programs have in common that benchmarks start on every host of a lab."""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.barrier import Barrier, open_barrier

TIMEOUT = timedelta(minutes=5)


def over_ranks(seconds: list[float], wrong: int) -> tuple[torch.Tensor, int]:
    """The slowest rank's seconds of every iteration, and the wrong elements of all ranks."""
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    total_wrong = torch.tensor(wrong)
    dist.all_reduce(total_wrong)
    return slowest, int(total_wrong)


def run(measure: Callable[[Barrier], dict], barrier_file: str) -> None:
    """A whole program: rank 0 prints what ``measure`` returns in a dmlcomm group of all ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("dmlcomm", timeout=TIMEOUT)
    result = measure(open_barrier(barrier_file, dist.get_rank()))
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()
    end()


def end() -> None:
    """Ends the process: threads of a backend may outlive the interpreter's modules."""
    sys.stdout.flush()
    os._exit(0)
