"""One rank of the benchmark of steps: trains the same model in several ways, in turns.

steps_rank.py OPTIONS BARRIER      a JSON object with the fields of `Options`; a file

Rank 0 prints one JSON object: seconds of a step by contestant, and the wrong weights of all.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
import dmlcomm.prio
from benchmarks.barrier import Barrier, open_barrier
from benchmarks.lab_worker import end, over_ranks
from benchmarks.prio.replay import Tiny, Transformer, replay
from benchmarks.prio.settings import TINY, TRANSFORMER
from benchmarks.training.models import MODELS

TIMEOUT = timedelta(minutes=5)
RATE = 2.0**-10  # of learning; sums of such steps are exact
# MiB, as the optimizer and DDP have them, for the model in its own size.
BUCKET_MB, GROUP_MB = 25.0, 4.0


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        model: a key of MODELS, TRANSFORMER or TINY.
        contestants: keys of CONTESTANTS.
        scale: of gradients and groups.
        compute_s: of a step of a replay.
    """

    model: str
    contestants: tuple[str, ...]
    scale: float
    compute_s: float
    warm_up: int
    rounds: int
    steps: int


class Contestant:
    """A model in training, and how its gradients are averaged.

    Attributes:
        steps: that were made.
    """

    def __init__(self, name: str, options: Options) -> None:
        torch.manual_seed(1)
        self.is_replay = options.model in MODELS
        self.model = _make_model(options)
        self.steps = 0
        self._forward: Callable[[torch.Tensor], torch.Tensor] = self.model
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        if name in ("ddp", "hook"):
            ddp = DistributedDataParallel(self.model, bucket_cap_mb=BUCKET_MB * options.scale)
            if name == "hook":
                ddp.register_comm_hook(dmlcomm.prio.HookState(ddp), dmlcomm.prio.comm_hook)
            self._forward = ddp
        elif name != "alone":
            mb = BUCKET_MB if name == "plain" else GROUP_MB
            self._optimizer = dmlcomm.DistributedOptimizer(
                self._optimizer, model=self.model, schedule=name, group_mb=mb * options.scale
            )

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._loss().backward()
        self._optimizer.step()
        self.steps += 1

    def flush(self) -> None:
        if isinstance(self._optimizer, dmlcomm.DistributedOptimizer):
            self._optimizer.flush()

    def _loss(self) -> torch.Tensor:
        if self.is_replay:
            x = torch.ones(1, requires_grad=True)
            return (self._forward(x) * (dist.get_rank() + 1)).sum()
        if isinstance(self.model, Tiny):
            return self._forward(torch.ones(Tiny.BATCH, Tiny.WIDTH)).square().mean()
        shape = (Transformer.BATCH, Transformer.LENGTH)
        words = torch.randint(0, Transformer.WORDS, shape)
        return nn.functional.cross_entropy(self._forward(words).flatten(0, 1), words.flatten())

    def wrong(self) -> int:
        """Weights of a replay that are not what its steps make of zeros."""
        if not self.is_replay:
            return 0
        mean = (dist.get_world_size() + 1) / 2
        expected = -RATE * self.steps * mean
        return sum(int((p != expected).sum()) for p in self.model.parameters())


def _make_model(options: Options) -> nn.Module:
    real = {TRANSFORMER: Transformer, TINY: Tiny}
    if options.model in real:
        return real[options.model]()
    return replay(MODELS[options.model](), options.scale, options.compute_s)


def turn(contestant: Contestant, steps: int, barrier: Barrier) -> float:
    """Seconds of a step of this rank, from the end of the first to the end of the last."""
    barrier.wait()
    contestant.step()
    begin = time.perf_counter()
    for _ in range(steps - 1):
        contestant.step()
    seconds = (time.perf_counter() - begin) / (steps - 1)
    contestant.flush()
    barrier.leave()
    return seconds


def measure(options: Options, barrier: Barrier) -> dict:
    contestants = {name: Contestant(name, options) for name in options.contestants}
    for contestant in contestants.values():
        turn(contestant, options.warm_up, barrier)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(options.rounds):
        for name, contestant in contestants.items():
            seconds[name].append(turn(contestant, options.steps, barrier))
    result = {}
    wrong = 0
    for name, contestant in contestants.items():
        own = 0 if name == "alone" else contestant.wrong()
        slowest, of_all = over_ranks(seconds[name], own)
        result[name] = statistics.median(slowest.tolist())
        wrong += of_all
    model = contestants[options.contestants[0]].model
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"seconds": result, "wrong": wrong, "gradient_bytes": gradient_bytes}


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("dmlcomm", timeout=TIMEOUT)
    result = measure(options, open_barrier(sys.argv[2], dist.get_rank()))
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end()
