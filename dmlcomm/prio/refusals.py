"""What `DistributedOptimizer` cannot work with, said before anything is done."""

import inspect
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from dmlcomm.prio.arrivals import is_watched

WRAPPERS = (DataParallel, DistributedDataParallel, FullyShardedDataParallel, FSDPModule)


def check_optimizer(optimizer: object, updates_parts: bool) -> None:
    """
    Args:
        optimizer: the user's.
        updates_parts: it will be asked for updates of some of its parameters at a time.

    Raises:
        TypeError: it is not an optimizer of torch.
        ValueError: it needs the loss again in a step, so its gradients cannot be sent before; or
            another optimizer makes its updates, of which it cannot make parts.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} computes the loss several times per step: "
            f"expected an optimizer whose step() needs no closure"
        )
    inner = [name for name, value in vars(optimizer).items() if _is_optimizer(value)]
    if updates_parts and inner:
        raise ValueError(
            f"{type(optimizer).__name__} leaves its updates to another optimizer ({inner[0]}): "
            f'use schedule="plain", or wrap the inner one'
        )


def check_measured(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> None:
    """
    Args:
        optimizer: the user's, whose steps "auto" is to measure.
        parameters: all that it has.

    Raises:
        ValueError: it has none.
    """
    if not parameters:
        raise ValueError(
            f"{type(optimizer).__name__} has no parameters, so there is nothing to measure: give "
            f'it parameters before, or use schedule="cross", "dear" or "plain"'
        )


def _is_optimizer(value: object) -> bool:
    return isinstance(value, torch.optim.Optimizer)


def check_model(model: nn.Module, waits: bool) -> None:
    """
    Args:
        model: the user's.
        waits: its modules will wait for their weights.

    Raises:
        ValueError: something else synchronises its gradients, or its modules cannot wait.
    """
    for name, module in model.named_modules():
        if waits and isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is TorchScript, which cannot wait for its weights: use "
                f'schedule="plain"'
            )
        if isinstance(module, WRAPPERS):
            raise ValueError(
                f"{name or 'the model'} is a {type(module).__name__}, which synchronises gradients "
                f"itself: pass the model without it"
            )


def check_parameters(parameters: Iterable[torch.Tensor]) -> None:
    """
    Raises:
        ValueError: a parameter is spread over ranks, has no shape yet, is no leaf, or has an
            optimizer of this kind already.
    """
    for parameter in parameters:
        if is_lazy(parameter):
            raise ValueError("a parameter has no shape yet: run the model once before")
        if isinstance(parameter, DTensor):
            raise ValueError("a parameter is a DTensor: expected parameters that are whole")
        if not parameter.is_leaf:
            raise ValueError("a parameter is the result of a computation: expected leaves")
        if is_watched(parameter):
            raise ValueError(
                "a parameter belongs to another DistributedOptimizer: call close() of that one "
                "before"
            )
