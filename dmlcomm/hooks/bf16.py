"""A communication hook for DistributedDataParallel: gradients travel as bfloat16."""

import torch
import torch.distributed as dist

from dmlcomm.hooks.futures import Tensors, complete_after, future_for


def bf16_hook(state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Tensors:
    """Averages a bucket in half of the bytes. Sums are made in float32 and rounded once per step.

    All ranks get equal bits. What rounding takes is lost.

    Args:
        state: the process group of the model; None: the default one.
        bucket: of gradients, float32 or float64.

    Returns:
        A future of the average, in the bucket's memory. It fails with the error of the operation.

    Example:
        >>> ddp = DistributedDataParallel(net)
        >>> ddp.register_comm_hook(None, dmlcomm.hooks.bf16_hook)
    """
    gradients = bucket.buffer()
    halves = torch.empty_like(gradients, dtype=torch.bfloat16)
    # Rounded after the division.
    torch.mul(gradients, 1.0 / dist.get_world_size(state), out=halves)
    work = dist.all_reduce(halves, group=state, async_op=True)
    result = future_for(gradients)
    complete_after(work.get_future(), lambda: gradients.copy_(halves), result)
    return result
