"""One rank of the benchmark of steps: trains the same model in several ways, in turns.

steps_rank.py OPTIONS BARRIER      a JSON object with the fields of `Options`; a file

Rank 0 prints one JSON object: seconds of a step by contestant, and the wrong weights of all ranks:
of real models those that are not DDP's, of replays those that are not what is expected.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

import dmlcomm
import dmlcomm.prio
from benchmarks.barrier import Barrier
from benchmarks.lab_worker import over_ranks, run
from benchmarks.prio.replay import Diary, Tiny, Transformer, replay
from benchmarks.prio.settings import DEMO, TINY, TRANSFORMER
from benchmarks.prio.wire import Wire
from benchmarks.training.models import MODELS
from dmlcomm.prio.exchange import SCHEDULES
from examples.lenet import IMAGE_SIZE, LeNet5

RATE = 2.0**-10  # of learning; sums of such steps are exact
# Of DDP, in MiB, for the model in its own size.
BUCKET_MB = 25.0
FIRST_BUCKET_MB = 1.0
DEMO_BATCH = 16
CALIBRATION_STEPS = 6
# Between more than two ranks, gradients of real models are rounded to multiples of this times the
# number of ranks. Then averages have the same bits in whatever order they are added: with 3 to 6, 8
# to 12 or 16 ranks the product of such a multiple and the inverse of their number is exact.
GRID = 2.0**-20


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        model: a key of MODELS, TRANSFORMER, DEMO or TINY.
        contestants: keys of CONTESTANTS.
        scale: of gradients, buckets and groups.
        compute_s: of a step of a replay.
        traced: steps of each contestant whose timeline is told afterwards, of a replay.
    """

    model: str
    contestants: tuple[str, ...]
    scale: float
    compute_s: float
    warm_up: int
    trials: int
    rounds: int
    steps: int
    traced: int = 0


class Contestant:
    """A model in training, and how its gradients are averaged.

    Attributes:
        steps: that were made.
    """

    def __init__(self, name: str, options: Options) -> None:
        torch.manual_seed(1)
        self.is_replay = options.model in MODELS
        self.diary = Diary()
        self.model = _make_model(options, self.diary)
        self.steps = 0
        if not self.is_replay and dist.get_world_size() > 2:
            _round_gradients(self.model)
        self._forward: Callable[[torch.Tensor], torch.Tensor] = self.model
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        if name in ("ddp", "hook"):
            ddp = make_ddp(self.model, options.scale)
            if name == "hook":
                ddp.register_comm_hook(dmlcomm.prio.HookState(ddp), dmlcomm.prio.comm_hook)
            self._forward = ddp
        elif name != "alone":
            self._optimizer = dmlcomm.DistributedOptimizer(
                self._optimizer, model=self.model, schedule=name
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
        """Of inputs that depend on the rank and the number of the step alone."""
        if self.is_replay:
            x = torch.ones(1, requires_grad=True)
            return (self._forward(x) * (dist.get_rank() + 1)).sum()
        seed = self.steps * dist.get_world_size() + dist.get_rank()
        generator = torch.Generator().manual_seed(seed)
        if isinstance(self.model, Tiny):
            x = torch.rand(Tiny.BATCH, Tiny.WIDTH, generator=generator)
            return self._forward(x).square().mean()
        if isinstance(self.model, LeNet5):
            images = torch.rand(DEMO_BATCH, 1, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
            labels = torch.randint(0, 10, (DEMO_BATCH,), generator=generator)
            return nn.functional.cross_entropy(self._forward(images), labels)
        shape = (Transformer.BATCH, Transformer.LENGTH)
        words = torch.randint(0, Transformer.WORDS, shape, generator=generator)
        return nn.functional.cross_entropy(self._forward(words).flatten(0, 1), words.flatten())

    def wrong(self) -> int:
        """Weights of a replay that are not what its steps make of zeros."""
        mean = (dist.get_world_size() + 1) / 2
        expected = -RATE * self.steps * mean
        return sum(int((p != expected).sum()) for p in self.model.parameters())


def make_ddp(model: nn.Module, scale: float) -> DistributedDataParallel:
    """With buckets of `scale` times their usual size. An argument would also set the first one,
    which is smaller."""
    first_bytes = int(scale * FIRST_BUCKET_MB * 2**20)
    with (
        mock.patch.object(distributed, "_DEFAULT_BUCKET_CAP_MB", scale * BUCKET_MB),
        mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", first_bytes),
    ):
        ddp = DistributedDataParallel(model)
    assert ddp.bucket_bytes_cap == int(scale * BUCKET_MB * 2**20)
    return ddp


def _round_gradients(model: nn.Module) -> None:
    grid = GRID * dist.get_world_size()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: (gradient / grid).round_().mul_(grid))


def wrong_weights(contestants: dict[str, Contestant]) -> int:
    """Of this rank. Those of real models should be DDP's after as many steps, which DDP makes up
    for."""
    ddp = contestants["ddp"]
    communicating = [c for name, c in contestants.items() if name != "alone"]
    if ddp.is_replay:
        return sum(contestant.wrong() for contestant in communicating)
    count = 0
    for other in sorted(communicating, key=lambda contestant: contestant.steps):
        while ddp.steps < other.steps:
            ddp.step()
        assert ddp.steps == other.steps
        pairs = zip(other.model.parameters(), ddp.model.parameters(), strict=True)
        count += sum(int((ours != theirs).sum()) for ours, theirs in pairs)
    return count


def _make_model(options: Options, diary: Diary) -> nn.Module:
    real = {TRANSFORMER: Transformer, DEMO: LeNet5, TINY: Tiny}
    if options.model in real:
        return real[options.model]()
    return replay(MODELS[options.model](), options.scale, options.compute_s, diary)


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


def calibrate(contestants: dict[str, Contestant], options: Options, barrier: Barrier) -> None:
    """Makes a step of a replay take `compute_s` without communication, with all that it does."""
    turn(contestants["alone"], CALIBRATION_STEPS, barrier)  # memory is new
    own = [turn(contestants["alone"], CALIBRATION_STEPS, barrier)]
    slowest, _ = over_ranks(own, 0)
    beside_s = slowest.tolist()[0] - options.compute_s
    for contestant in contestants.values():
        contestant.diary.share = max(0.0, 1 - beside_s / options.compute_s)


def scale_groups(scale: float) -> None:
    """Each schedule has its usual size of groups, scaled as the model; "auto" tries them so."""
    for name, schedule in SCHEDULES.items():
        SCHEDULES[name] = replace(
            schedule, group_mb=scale * schedule.group_mb, first_mb=scale * schedule.first_mb
        )


def measure(options: Options, barrier: Barrier) -> dict:
    scale_groups(options.scale)
    contestants = {name: Contestant(name, options) for name in options.contestants}
    if options.compute_s > 0:
        calibrate(contestants, options, barrier)
    for name, contestant in contestants.items():
        turn(contestant, options.trials if name == "auto" else options.warm_up, barrier)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(options.rounds):
        first = number % len(contestants)  # each round begins with another one
        for name in (*options.contestants[first:], *options.contestants[:first]):
            seconds[name].append(turn(contestants[name], options.steps, barrier))
    all_turns = [value for turns in seconds.values() for value in turns]
    slowest, wrong = over_ranks(all_turns, wrong_weights(contestants))
    of_turns = slowest.reshape(len(contestants), options.rounds).tolist()
    result = dict(zip(contestants, map(statistics.median, of_turns), strict=True))
    model = contestants[options.contestants[0]].model
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    for name, contestant in contestants.items() if options.traced else ():
        if name != "alone":
            print(json.dumps(trace(name, contestant, options.traced, barrier)), flush=True)
    return {"seconds": result, "wrong": wrong, "gradient_bytes": gradient_bytes}


def trace(name: str, contestant: Contestant, steps: int, barrier: Barrier) -> dict:
    """The timeline of a turn of this rank: what it computes, and what leaves its host."""
    wire = Wire(is_outgoing=True)
    contestant.diary.is_open = True
    wire.begin()
    turn(contestant, steps, barrier)
    wire.end()
    return {
        "timeline": name,
        "rank": dist.get_rank(),
        "computed": [asdict(entry) for entry in contestant.diary.entries],
        "packets": [asdict(packet) for packet in wire.packets],
    }


if __name__ == "__main__":
    options = Options(**json.loads(sys.argv[1]))
    run(lambda barrier: measure(options, barrier), sys.argv[2])
