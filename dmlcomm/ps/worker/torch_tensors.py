"""Tensors of torch as memory. Loaded when the first one comes, so where torch is loaded anyway."""

from typing import Any

import torch

from dmlcomm.ps.worker.layout import DTYPES as NAMES
from dmlcomm.ps.worker.layout import Memory, TensorSpec

DTYPES = {getattr(torch, name): core for name, core in NAMES.items()}


def spec_of(tensor: torch.Tensor, what: str) -> TensorSpec:
    if tensor.layout != torch.strided:
        raise TypeError(
            f"{what}: a tensor of layout {tensor.layout}; expected a dense one: rows of a sparse "
            f"gradient are pushed with push_rows(model, indices, values)"
        )
    if tensor.dtype not in DTYPES:
        legal = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{what}: elements of {tensor.dtype}; expected one of {legal}")
    return TensorSpec(tuple(tensor.shape), DTYPES[tensor.dtype])


def readable(tensor: torch.Tensor) -> Memory:
    """On the CPU and row-major: itself, or a copy."""
    dense = tensor.detach().cpu().resolve_neg().contiguous()
    return Memory(dense.data_ptr(), dense.numel(), dense)


def writable(tensor: torch.Tensor) -> tuple[Memory, Any]:
    target = tensor.detach()
    if target.device.type == "cpu" and target.is_contiguous():
        return Memory(target.data_ptr(), target.numel(), target), lambda: tensor
    staging = torch.empty(target.shape, dtype=target.dtype)

    def finish() -> torch.Tensor:
        target.copy_(staging)
        return tensor

    return Memory(staging.data_ptr(), staging.numel(), staging), finish


def empty(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def indices_of(value: torch.Tensor) -> Memory:
    if value.dim() != 1 or value.is_floating_point() or value.is_complex():
        raise ValueError(
            f"numbers of rows: expected one dimension of integers, got {value.dtype}"
            f"{list(value.shape)}"
        )
    return readable(value.to(torch.int64))
