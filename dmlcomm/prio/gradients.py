"""Averages in the place of gradients, for an update."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn


@contextlib.contextmanager
def replaced_gradients(averages: Mapping[nn.Parameter, torch.Tensor]) -> Iterator[None]:
    """Inside, these are the parameters' gradients. Nothing is copied.

    Raises:
        RuntimeError: a parameter has another type or device than its gradient had.
    """
    local = [parameter.grad for parameter in averages]
    try:
        for parameter, average in averages.items():
            try:
                parameter.grad = average
            except RuntimeError as error:
                raise RuntimeError(
                    f"a parameter is {parameter.dtype} on {parameter.device} now, and the average "
                    f"of its gradient is {average.dtype} on {average.device}: call flush() of the "
                    f"optimizer before half(), double() or to() of the model. To train on after "
                    f"them, close() this DistributedOptimizer and make another one"
                ) from error
        yield
    finally:
        for parameter, gradient in zip(averages, local, strict=True):
            parameter.grad = gradient
