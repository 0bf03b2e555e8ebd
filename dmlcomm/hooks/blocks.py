"""Blocks of a scale and 256 codes of 8 bits in tensors of bytes; docs/hooks.md has the format."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dmlcomm import _core

BLOCK: int = _core.QUANTIZED_BLOCK


@dataclass(frozen=True)
class Codes:
    """How numbers become bytes.

    Attributes:
        are_floats: fp8 (1 + 4 + 3 bits, up to 448), or else int8 (-127 to 127).
    """

    are_floats: bool

    def quantize(
        self,
        blocks: torch.Tensor,
        values: torch.Tensor,
        factor: float,
        error: torch.Tensor | None,
        sources: Sequence[torch.Tensor] = (),
    ) -> None:
        """`blocks` become `factor` x `values` + `error` + `sources`; `error` what is left of it.

        Args:
            blocks: uint8, at least `num_bytes` of the values.
            values: float32, contiguous.
            error: as `values`; None: what rounding takes is lost.
            sources: blocks like the first.
        """
        _core.quantize(
            blocks.data_ptr(),
            0 if error is None else error.data_ptr(),
            values.data_ptr(),
            factor,
            [source.data_ptr() for source in sources],
            values.numel(),
            self.are_floats,
        )

    def dequantize(self, values: torch.Tensor, blocks: torch.Tensor) -> None:
        """`values` (float32, contiguous) become the numbers of `blocks`."""
        _core.dequantize(values.data_ptr(), blocks.data_ptr(), values.numel(), self.are_floats)


CODES = {"fp8": Codes(are_floats=True), "int8": Codes(are_floats=False)}


def num_bytes(count: int) -> int:
    """What so many numbers take."""
    return _core.quantized_bytes(count)
