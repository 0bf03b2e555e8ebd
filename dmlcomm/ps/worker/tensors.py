"""Tensors as memory: NumPy arrays here, those of torch through `torch_tensors` where there are any.

A tensor whose memory is not one run of elements is copied: to be read before the operation, to be
written after it.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dmlcomm import _core
from dmlcomm.ps.worker.layout import DTYPES, Layout, Memory, TensorSpec

_NATIVE = {core: name for name, core in DTYPES.items() if name != "bfloat16"}

# Called when what was received is in the memory: brings it to the tensor, and returns that.
Finish = Callable[[], Any]

Function = TypeVar("Function", bound=Callable[..., Any])


def _or_of_torch(function: Function) -> Function:
    """Leaves tensors of torch to the function of this name in `torch_tensors`."""

    @functools.wraps(function)
    def choose(tensor: Any, *arguments: Any) -> Any:
        torch = None if type(tensor) is np.ndarray else sys.modules.get("torch")
        if torch is None or not isinstance(tensor, torch.Tensor):
            return function(tensor, *arguments)
        from dmlcomm.ps.worker import torch_tensors

        return getattr(torch_tensors, function.__name__)(tensor, *arguments)

    return choose  # type: ignore[return-value]


@_or_of_torch
def spec_of(tensor: Any, what: str) -> TensorSpec:
    """Raises TypeError for what is no tensor, or has elements that servers do not know."""
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"{what}: expected a NumPy array or a torch tensor, got {type(tensor)}")
    if tensor.dtype.name not in DTYPES or not tensor.dtype.isnative:
        raise TypeError(f"{what}: elements of {tensor.dtype}; expected one of {', '.join(DTYPES)}")
    return TensorSpec(tensor.shape, DTYPES[tensor.dtype.name])


def arrays_of(layout: Layout) -> _core.PsArrays | None:
    """Recognises the arrays of this layout; None if NumPy itself does not know a type."""
    if any(tensor.dtype not in _NATIVE for tensor in layout.tensors):
        return None
    arrays = [
        (_NATIVE[tensor.dtype], tensor.shape, space)
        for tensor, space in zip(layout.tensors, layout.space_of, strict=True)
    ]
    return _core.PsArrays(arrays, len(layout.spaces))


@_or_of_torch
def readable(tensor: Any) -> Memory:
    """The elements in row-major order."""
    return _memory_of(np.ascontiguousarray(tensor))


@_or_of_torch
def writable(tensor: Any) -> tuple[Memory, Finish]:
    """Memory to receive into. Raises ValueError for an array that may not be written."""
    if not tensor.flags.writeable:
        raise ValueError("an array that is read-only cannot receive weights; pass a copy")
    if tensor.flags.c_contiguous:
        return _memory_of(tensor), lambda: tensor
    staging = np.empty(tensor.shape, tensor.dtype)

    def finish() -> Any:
        tensor[...] = staging
        return tensor

    return _memory_of(staging), finish


@_or_of_torch
def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """A tensor of the same library, element type and device, in row-major order."""
    return np.empty(shape, like.dtype)


@_or_of_torch
def indices_of(value: Any) -> Memory:
    """Numbers of rows, as int64."""
    array = np.asarray(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"numbers of rows: expected one dimension of integers, got {array.dtype}"
            f"{list(array.shape)}"
        )
    return _memory_of(np.ascontiguousarray(array, np.int64))


def _memory_of(array: Any) -> Memory:
    return Memory(_core.address_of(array), array.size, array)
