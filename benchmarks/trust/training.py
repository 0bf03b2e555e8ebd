"""What the ranks of these benchmarks train: small enough for the network to matter."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def make_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 16)
    )


def stepper(model: torch.nn.Module, group: dist.ProcessGroup) -> Callable[[], None]:
    """A function that makes a step of DDP, on random data."""
    parallel = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        parallel(torch.randn(32, 256)).square().mean().backward()
        optimizer.step()

    return step
