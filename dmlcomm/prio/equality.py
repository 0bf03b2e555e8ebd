"""Whether two tensors are the same."""

import torch


def are_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Also where some are no numbers, as after an overflow."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(first, second) or (
        first.is_floating_point() and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
    )
