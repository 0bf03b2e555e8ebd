"""One bucket on its way to its average, as blocks of 8-bit codes."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from dmlcomm.hooks.blocks import BLOCK, Codes, num_bytes


class QuantizedBucket:
    """The memory of a bucket that ranks exchange, again in every step.

    Every rank owns a shard of the bucket: equal numbers of whole blocks; the last ones may be short
    or empty. It gets the codes of the others for its shard (all-to-all), adds them to its own
    numbers in float32, and all ranks get the codes of these averages (all-gather). So the ranks'
    averages have equal bits, and each rank sends twice (n - 1)/n of the codes.

    Attributes:
        parameters: those of the bucket, in its order.
        error: float32, as long as the bucket. Of shards of others it is what the codes of this
            rank lack, and of the own shard what those of the average lack: in both cases this
            rank's part of what the sum over ranks lacks so far. None: it is lost.
        pinned: float32, as long as the bucket, for gradients of a GPU on their way. None: they are
            the host's.

    Args:
        buffer: that of the bucket.
        rank, num_ranks: of the process group.
        codes: what travels.
        has_error: whether to keep it.
    """

    def __init__(
        self,
        parameters: list[torch.Tensor],
        buffer: torch.Tensor,
        rank: int,
        num_ranks: int,
        codes: Codes,
        has_error: bool,
    ) -> None:
        self.parameters = parameters
        count = buffer.numel()
        # New tensors of float32 on the CPU, whatever torch's defaults are.
        new = partial(torch.zeros, dtype=torch.float32, device="cpu")
        self.error = new(count) if has_error else None
        self.pinned = new(count, pin_memory=True) if buffer.is_cuda else None
        self._codes = codes
        self._rank = rank
        self._num_ranks = num_ranks
        self._shard = -(-count // (num_ranks * BLOCK)) * BLOCK
        self._own = slice(min(rank * self._shard, count), min((rank + 1) * self._shard, count))
        self._shard_bytes = num_bytes(self._shard)
        # Behind the last number there is something, too, that travels and nobody reads.
        num_bytes_sent = num_ranks * self._shard_bytes
        self._sent = torch.zeros(num_bytes_sent, dtype=torch.uint8, device="cpu")
        self._received = torch.zeros_like(self._sent)

    def exchange(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> Any:
        """Sends each rank the codes of its shard; the work of that."""
        for part in (slice(0, self._own.start), slice(self._own.stop, gradients.numel())):
            self._quantize(gradients, part)
        return dist.all_to_all_single(self._received, self._sent, group=group, async_op=True)

    def gather(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> Any:
        """After `exchange`: sends all the codes of the own shard's averages; the work of that."""
        received = self._received.view(self._num_ranks, self._shard_bytes)
        others = [received[rank] for rank in range(self._num_ranks) if rank != self._rank]
        self._quantize(gradients, self._own, others)
        own = self._sent.view(self._num_ranks, self._shard_bytes)[self._rank]
        return dist.all_gather_into_tensor(self._sent, own, group=group, async_op=True)

    def finish(self, gradients: torch.Tensor) -> torch.Tensor:
        """After `gather`: the gradients become their averages."""
        self._codes.dequantize(gradients, self._sent)
        return gradients

    def _quantize(
        self, gradients: torch.Tensor, part: slice, sources: list[torch.Tensor] | None = None
    ) -> None:
        if part.start == part.stop:
            return
        error = None if self.error is None else self.error[part]
        blocks = self._sent[num_bytes(part.start) :]
        factor = 1.0 / self._num_ranks
        self._codes.quantize(blocks, gradients[part], factor, error, sources or ())
