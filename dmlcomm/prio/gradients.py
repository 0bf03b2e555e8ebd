"""Averages in the place of gradients, for an update."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn


@contextlib.contextmanager
def replaced_gradients(averages: Mapping[nn.Parameter, torch.Tensor]) -> Iterator[None]:
    """Inside, these are the parameters' gradients. Nothing is copied."""
    local = [parameter.grad for parameter in averages]
    try:
        for parameter, average in averages.items():
            parameter.grad = average
        yield
    finally:
        for parameter, gradient in zip(averages, local, strict=True):
            parameter.grad = gradient
