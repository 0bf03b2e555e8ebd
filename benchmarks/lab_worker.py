"""What the programs have in common that benchmarks start on every host of a lab."""

import os
import sys

import torch
import torch.distributed as dist


def over_ranks(seconds: list[float], wrong: int) -> tuple[torch.Tensor, int]:
    """The slowest rank's seconds of every iteration, and the wrong elements of all ranks."""
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    total_wrong = torch.tensor(wrong)
    dist.all_reduce(total_wrong)
    return slowest, int(total_wrong)


def end() -> None:
    """Ends the process: threads of a backend may outlive the interpreter's modules."""
    sys.stdout.flush()
    os._exit(0)
