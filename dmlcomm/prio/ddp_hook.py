"""A communication hook for DistributedDataParallel: buckets get tickets."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dmlcomm.hooks.futures import Tensors, complete_after, future_for
from dmlcomm.prio.forward_order import ForwardOrder, ticket_at
from dmlcomm.prio.module_hooks import ModuleHook
from dmlcomm.prio.ticket import ticket


class DdpModuleHook(
    ModuleHook,
    reason="dmlcomm.prio.HookState learns the order of modules in front of them, between parts "
    "that are compiled: compile without fullgraph=True, or call "
    "ddp.module.compile(fullgraph=True) after the first backward pass",
):
    """Learns the order for `comm_hook`."""


class HookState:
    """For `comm_hook`: the order in which the model reads its parameters.

    It is learned in the forward passes before the first backward pass.

    Args:
        model: wrapped by DistributedDataParallel.

    Attributes:
        process_group: that of the model.

    Raises:
        TypeError: it is not.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(f"expected DistributedDataParallel, got {type(model).__name__}")
        # Not the model, whose reducer keeps this state alive unseen by the garbage collector.
        self.process_group: dist.ProcessGroup = model.process_group
        self._forward: ForwardOrder | None = ForwardOrder(model.module, DdpModuleHook)
        self._positions: dict[torch.Tensor, int] = {}

    def ticket_of(self, bucket: dist.GradBucket) -> int:
        """That of the parameter in `bucket` that is read first.

        DDP makes its buckets anew after the first iteration; what counts is in the bucket.
        """
        if self._forward is not None:
            self._positions = dict(self._forward.positions().items())
            self._forward.stop()
            self._forward = None
        last = len(self._positions)
        position = min(self._positions.get(p, last) for p in bucket.parameters())
        return ticket_at(position, last + 1)


def comm_hook(state: HookState, bucket: dist.GradBucket) -> Tensors:
    """Averages a bucket as DDP itself does, with a ticket.

    The bucket with the parameters that the next forward pass reads first overtakes those before.

    Args:
        state: of the model.
        bucket: of gradients.

    Returns:
        A future of the average, in the bucket's memory. It fails with the error of the operation.

    Example:
        >>> ddp = DistributedDataParallel(net)
        >>> ddp.register_comm_hook(dmlcomm.prio.HookState(ddp), dmlcomm.prio.comm_hook)
    """
    gradients = bucket.buffer()
    # DDP without a hook multiplies by the inverse: a division would give other bits.
    gradients.mul_(1.0 / state.process_group.size())
    with ticket(state.ticket_of(bucket)):
        work = dist.all_reduce(gradients, group=state.process_group, async_op=True)
    result = future_for(gradients)
    complete_after(work.get_future(), lambda: gradients, result)
    return result
