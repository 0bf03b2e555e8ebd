"""Gradients of a GPU, and their copy in memory of the host, where hooks can work on them."""

import torch

from dmlcomm.hooks.futures import Tensors, complete_after, future_for


class StagedBucket:
    """One step of a bucket: to the host, and back. No caller waits for the GPU but `on_host`.

    Both copies have streams of their own, which follow what the current stream had when this was
    made, and nothing that it got later.

    Args:
        gradients: on the GPU.
        pinned: memory of the host, as long; nothing else uses it before the gradients are back.
    """

    def __init__(self, gradients: torch.Tensor, pinned: torch.Tensor) -> None:
        self._gradients = gradients
        self._pinned = pinned
        # The thread that waits for it sleeps.
        self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        # A complete future calls back at once, on a stream of its own.
        self._ready = future_for(gradients)
        self._ready.set_result(gradients)
        self._ready.then(self._copy_to_host).wait()  # raises what has failed there

    def on_host(self) -> torch.Tensor:
        """The gradients in pinned memory, once they have come."""
        self._copied.synchronize()
        return self._pinned

    def copy_back(self, averages: Tensors, result: Tensors) -> None:
        """Makes `result` the gradients, as `averages` has them in pinned memory, or its error."""

        def copy() -> torch.Tensor:
            return self._gradients.copy_(averages.value(), non_blocking=True)

        complete_after(self._ready, copy, result)

    def _copy_to_host(self, _: Tensors) -> None:
        self._pinned.copy_(self._gradients, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._gradients.device))
