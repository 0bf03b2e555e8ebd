"""Models for the benchmark of steps: replays, whose layers only take time, and a real one."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.training.models import BACKWARD_PER_FORWARD, Model


@dataclass(frozen=True)
class Computed:
    """A layer's pass, on the clock of `time.time`."""

    is_forward: bool
    layer: int
    begin_s: float
    end_s: float


@dataclass
class Diary:
    """What the layers of a replay have computed; nothing is noted while it is not open.

    Attributes:
        share: of their time that layers wait; the rest is what a step takes beside.
    """

    is_open: bool = False
    share: float = 1.0
    entries: list[Computed] = field(default_factory=list)

    def compute(self, seconds: float, is_forward: bool, layer: int) -> None:
        """Computing is waited for, as if a GPU did it: this machine's cores emulate the others."""
        begin_s = time.time()
        time.sleep(self.share * seconds)
        if self.is_open:
            self.entries.append(Computed(is_forward, layer, begin_s, time.time()))


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: "ReplayLayer"
    ) -> torch.Tensor:
        layer.compute(is_forward=True)
        ctx.layer = layer
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        ctx.layer.compute(is_forward=False)
        # Every element of the weight's gradient is the factor of the loss.
        return gradient, gradient.expand(ctx.layer.weight.numel()), None


class ReplayLayer(nn.Module):
    def __init__(self, number: int, elements: int, forward_s: float, diary: Diary) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self._number = number
        self._forward_s = forward_s
        self._diary = diary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Wait.apply(x, self.weight, self)

    def compute(self, is_forward: bool) -> None:
        factor = 1 if is_forward else BACKWARD_PER_FORWARD
        self._diary.compute(factor * self._forward_s, is_forward, self._number)


def replay(model: Model, scale: float, compute_s: float, diary: Diary) -> nn.Sequential:
    """Layers with `scale` of the model's parameters, whose passes take `compute_s` together."""
    flops = sum(layer.forward_flops for layer in model.layers)
    seconds_per_flop = compute_s / (1 + BACKWARD_PER_FORWARD) / flops
    return nn.Sequential(
        *(
            ReplayLayer(
                number,
                max(1, round(layer.parameters * scale)),
                layer.forward_flops * seconds_per_flop,
                diary,
            )
            for number, layer in enumerate(model.layers)
        )
    )


class Tiny(nn.Sequential):
    """162 parameters of some elements each: what a step costs beside communication shows."""

    WIDTH, DEPTH, BATCH = 16, 81, 8

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(self.WIDTH, self.WIDTH) for _ in range(self.DEPTH)))
        for layer in self:
            nn.init.orthogonal_(layer.weight)  # so that gradients do not vanish on their way


class Transformer(nn.Module):
    """A small one that learns sequences, for real."""

    WIDTH, DEPTH, WORDS, LENGTH, BATCH = 192, 3, 512, 32, 8

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(self.WORDS, self.WIDTH)
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, 4, 4 * self.WIDTH, dropout=0.0, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, self.DEPTH, enable_nested_tensor=False)
        self.out = nn.Linear(self.WIDTH, self.WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.words(words)))
