"""A communication hook for DistributedDataParallel: buckets are averaged by the servers."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dmlcomm.ps.client import Client


@dataclass
class HookState:
    """What `ps_hook` needs.

    Attributes:
        client: of this worker.
        model: what names of the buckets' models begin with; one per DDP module.
        wire: "bf16" or "f16": how f32 travels.
    """

    client: Client
    model: str = "ddp"
    wire: str = ""


def ps_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over all workers through the servers.

    DDP makes its buckets anew after the first iteration, so a model is one shape of one bucket.
    Every bucket is a clock of its own: workers meet at each of them.

    Example:
        >>> state = dmlcomm.ps.HookState(client)
        >>> ddp.register_comm_hook(state, dmlcomm.ps.ps_hook)
    """
    gradients = bucket.buffer()
    dtype = str(gradients.dtype).removeprefix("torch.")
    name = f"{state.model}.bucket{bucket.index()}.{gradients.numel()}.{dtype}"
    client = state.client
    if not client.has_model(name):
        client.init(
            name, torch.zeros_like(gradients), rule="assign", reduce="mean", wire=state.wire
        )
    # Not into the bucket itself: if a server is lost, gradients are sent again from there.
    averaged = torch.empty_like(gradients)
    pulled = client.push_pull_async(name, gradients, staleness=0, out=averaged)
    return _as_torch_future(pulled)


def _as_torch_future(future: "Future[Any]") -> torch.futures.Future[torch.Tensor]:
    result: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def hand_over(done: "Future[Any]") -> None:
        try:
            result.set_result(done.result())
        except Exception as error:
            result.set_exception(error)  # type: ignore[arg-type]

    future.add_done_callback(hand_over)
    return result
