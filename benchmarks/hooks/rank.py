"""One rank of the benchmark of hooks: steps of a replay, in turns with all hooks.

rank.py GRADIENT_MB ROUNDS BARRIER

Rank 0 prints one JSON object: by hook, the seconds that communication adds to a step (the median
over rounds of the slowest rank, less that of steps that send nothing), and wrong averages.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.barrier import Barrier
from benchmarks.hooks.settings import MODEL
from benchmarks.lab_worker import over_ranks, run
from benchmarks.prio.replay import Diary, replay
from benchmarks.training.models import MODELS
from examples.lenet import HOOKS, ddp_without_communication

WARM_UP = 2  # DDP arranges its buckets after the first step
BUCKET_MB = 25.0  # DDP's own, of the model in its own size
ALONE = "alone"
# All numbers of a block are equal, so rounding takes nothing but last bits.
TOLERANCE = 2.0**-8


class Contestant:
    """A model whose gradients are averaged in one of the ways."""

    def __init__(self, name: str, scale: float) -> None:
        model = replay(MODELS[MODEL](), scale, compute_s=0, diary=Diary())
        options = {"bucket_cap_mb": BUCKET_MB * scale, "gradient_as_bucket_view": True}
        if name == ALONE:
            self._ddp = ddp_without_communication(model, **options)
        else:
            self._ddp = DistributedDataParallel(model, **options)
            HOOKS[name](self._ddp)

    def step(self) -> None:
        x = torch.ones(1, requires_grad=True)
        self._ddp.zero_grad()
        (self._ddp(x) * (dist.get_rank() + 1)).sum().backward()

    def wrong(self) -> int:
        """Gradients of the last step that are not the average."""
        expected = torch.tensor((dist.get_world_size() + 1) / 2)
        return sum(
            int(((p.grad - expected).abs() > TOLERANCE * expected).sum())
            for p in self._ddp.parameters()
        )


def measure(gradient_mb: float, rounds: int, barrier: Barrier) -> dict:
    scale = gradient_mb * 1e6 / MODELS[MODEL]().gradient_bytes
    contestants = {name: Contestant(name, scale) for name in (ALONE, *HOOKS)}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-WARM_UP, rounds):
        for name, contestant in contestants.items():
            barrier.wait()
            begin = time.perf_counter()
            contestant.step()
            if number >= 0:
                seconds[name].append(time.perf_counter() - begin)
            barrier.leave()
    found, wrong = {}, {}
    for name, contestant in contestants.items():
        slowest, wrong[name] = over_ranks(seconds[name], contestant.wrong())
        found[name] = slowest.median().item()
    elements = sum(p.numel() for p in replay(MODELS[MODEL](), scale, 0, Diary()).parameters())
    return {
        "seconds": {name: found[name] - found[ALONE] for name in HOOKS},
        "wrong": wrong,
        "gradient_bytes": 4 * elements,
    }


if __name__ == "__main__":
    gradient_mb, rounds = float(sys.argv[1]), int(sys.argv[2])
    run(lambda barrier: measure(gradient_mb, rounds, barrier), sys.argv[3])
