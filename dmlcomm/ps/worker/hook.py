"""A communication hook for DistributedDataParallel: buckets are averaged by the servers."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from dmlcomm.ps.worker.census import CensusModel
from dmlcomm.ps.worker.client import Client


@dataclass
class HookState:
    """The settings of `ps_hook`, and its models.

    Attributes:
        client: of this worker; workers have the numbers of their ranks.
        model: what names of the buckets' models begin with; one per DDP module.
        wire: "bf16" or "f16": how f32 travels. Default: as it is.
    """

    client: Client
    model: str = "ddp"
    wire: str = ""
    _models: dict[str, CensusModel] = field(default_factory=dict, init=False, repr=False)


def ps_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over all workers through the servers.

    DDP makes its buckets anew after the first iteration, so a model is one shape of one bucket.
    Every bucket is a clock of its own: workers meet at each of them.

    Args:
        state: one per DDP module.
        bucket: of gradients, f16, bf16, f32 or f64, on the CPU.

    Returns:
        A future of the mean, a tensor like the bucket. An average without one of the
        `client.num_workers` workers is never returned: its error is PeerLostError, and PsError
        when servers fail.

    Raises:
        TypeError: the gradients are not on the CPU.

    Example:
        >>> state = dmlcomm.ps.HookState(client)
        >>> ddp.register_comm_hook(state, dmlcomm.ps.ps_hook)
    """
    gradients = bucket.buffer()
    if gradients.device.type != "cpu":
        raise TypeError(
            f"ps_hook: expected gradients on the CPU, got {gradients.device} in bucket "
            f"{bucket.index()}; use DDP without this hook, or train on the CPU"
        )
    dtype = str(gradients.dtype).removeprefix("torch.")
    name = f"{state.model}.bucket{bucket.index()}.{gradients.numel()}.{dtype}"
    model = state._models.get(name)
    if model is None:
        workers = state.client.num_workers
        model = CensusModel(state.client, name, gradients, "mean", workers, state.wire)
        state._models[name] = model
    # Not into the bucket itself: if a server is lost, gradients are sent again from there.
    averaged = torch.empty_like(gradients)
    result: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def end(error: BaseException | None) -> None:
        if error is None:
            result.set_result(averaged)
        else:
            result.set_exception(error)  # type: ignore[arg-type]

    model.start(gradients, averaged, end)
    return result
