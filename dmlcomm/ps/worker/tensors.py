"""Tensors as memory: NumPy arrays here, those of torch through `torch_tensors` where there are any.

A tensor whose memory is not one run of elements is copied: to be read before the operation, to be
written after it.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from dmlcomm import _core
from dmlcomm.ps.worker.layout import Layout, Memory, TensorSpec

# The core's names of element types.
DTYPES = {
    "uint8": "u8",
    "int8": "i8",
    "uint16": "u16",
    "int16": "i16",
    "uint32": "u32",
    "int32": "i32",
    "uint64": "u64",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",  # of the package ml_dtypes
    "float32": "f32",
    "float64": "f64",
}

_NATIVE = {core: name for name, core in DTYPES.items() if name != "bfloat16"}

# Called when what was received is in the memory: brings it to the tensor, and returns that.
Finish = Callable[[], Any]


def spec_of(tensor: Any, what: str) -> TensorSpec:
    """Raises TypeError for what is no tensor, or has elements that servers do not know."""
    torch_side = _torch_side(tensor)
    if torch_side is not None:
        return torch_side.spec_of(tensor, what)  # type: ignore[no-any-return]
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


def readable(tensor: Any) -> Memory:
    """The elements in row-major order."""
    torch_side = _torch_side(tensor)
    if torch_side is not None:
        return torch_side.readable(tensor)  # type: ignore[no-any-return]
    return _memory_of(np.ascontiguousarray(tensor))


def writable(tensor: Any) -> tuple[Memory, Finish]:
    """Memory to receive into. Raises ValueError for an array that may not be written."""
    torch_side = _torch_side(tensor)
    if torch_side is not None:
        return torch_side.writable(tensor)  # type: ignore[no-any-return]
    if not tensor.flags.writeable:
        raise ValueError("an array that is read-only cannot receive weights; pass a copy")
    if tensor.flags.c_contiguous:
        return _memory_of(tensor), lambda: tensor
    staging = np.empty(tensor.shape, tensor.dtype)

    def finish() -> Any:
        tensor[...] = staging
        return tensor

    return _memory_of(staging), finish


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """A tensor of the same library, element type and device, in row-major order."""
    torch_side = _torch_side(like)
    if torch_side is not None:
        return torch_side.empty(like, shape)
    return np.empty(shape, like.dtype)


def indices_of(value: Any) -> Memory:
    """Numbers of rows, as int64."""
    torch_side = _torch_side(value)
    if torch_side is not None:
        return torch_side.indices_of(value)  # type: ignore[no-any-return]
    array = np.asarray(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"numbers of rows: expected one dimension of integers, got {array.dtype}"
            f"{list(array.shape)}"
        )
    array = np.ascontiguousarray(array, np.int64)
    return _memory_of(array)


def _memory_of(array: Any) -> Memory:
    return Memory(_core.address_of(array), array.size, array)


def _torch_side(tensor: Any) -> ModuleType | None:
    """The module for tensors of torch, if this is one: then torch is loaded already."""
    if type(tensor) is np.ndarray:
        return None
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return None
    from dmlcomm.ps.worker import torch_tensors

    return torch_tensors
