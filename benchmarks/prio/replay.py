"""Models for the benchmark of steps: replays, whose layers only take time, and a real one."""

import time
from typing import Any

import torch
from torch import nn

from benchmarks.training.models import BACKWARD_PER_FORWARD, Model


class _Wait(torch.autograd.Function):
    """Computing is waited for, as if a GPU did it: the cores of this machine emulate the others."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, forward_s: float) -> torch.Tensor:
        time.sleep(forward_s)
        ctx.forward_s, ctx.elements = forward_s, weight.numel()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        time.sleep(BACKWARD_PER_FORWARD * ctx.forward_s)
        # Every element of the weight's gradient is the factor of the loss.
        return gradient, gradient.expand(ctx.elements), None


class ReplayLayer(nn.Module):
    def __init__(self, elements: int, forward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self._forward_s = forward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Wait.apply(x, self.weight, self._forward_s)


def replay(model: Model, scale: float, compute_s: float) -> nn.Sequential:
    """Layers with `scale` of the model's parameters, whose passes take `compute_s` together."""
    flops = sum(layer.forward_flops for layer in model.layers)
    seconds_per_flop = compute_s / (1 + BACKWARD_PER_FORWARD) / flops
    return nn.Sequential(
        *(
            ReplayLayer(
                max(1, round(layer.parameters * scale)), layer.forward_flops * seconds_per_flop
            )
            for layer in model.layers
        )
    )


class Tiny(nn.Sequential):
    """162 parameters of some elements each: what a step costs beside communication shows."""

    WIDTH, DEPTH, BATCH = 16, 81, 8

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(self.WIDTH, self.WIDTH) for _ in range(self.DEPTH)))


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
