"""Reduces a tensor over all workers, and notices when one of them is missing.

Servers go on without a worker that is lost, but a sum or a mean without it would be wrong.
Therefore the model has a second tensor, the **census**, of which each server has one element and
which it reduces last: by that, all workers see whether every worker is in the result.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from dmlcomm import errors
from dmlcomm.ps.worker.client import Client


class CensusModel:
    """A model with rule "assign": its weights become the sum or the mean of what workers push.

    It carries one operation at a time: when a server is lost a pull is repeated, and must not find
    what the next operation has pushed.

    Args:
        client: of this worker; workers have the numbers from 0 to num_workers - 1.
        model: its name.
        like: a tensor of the size and type that is reduced.
        reduce: "sum" or "mean".
        num_workers: that have to be in every result.
        wire: how f32 travels, see `Client.init`.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        like: torch.Tensor,
        reduce: str,
        num_workers: int,
        wire: str = "",
    ) -> None:
        self._client = client
        self._model = model
        self._num_workers = num_workers
        is_f32 = like.dtype == torch.float32
        # Of another type than the tensor: so it is a part of its own, of which each server has one
        # element, behind the tensor's.
        dtype = torch.float64 if is_f32 else torch.float32
        # A sum counts workers. Of a mean of n workers, to which worker 0 gives 1 and the others
        # nothing, 1/n is left; without worker 0 it is 0, with m workers 1/m. Both are whole
        # multiples of 1/(n * m) apart from what is expected, m <= n: much more than f32 rounds.
        share = 1.0 if reduce == "sum" or client.worker == 0 else 0.0
        self._share = torch.full((client.num_servers,), share, dtype=dtype)
        self._expected = float(num_workers) if reduce == "sum" else 1 / num_workers
        first_values = [torch.zeros_like(like), torch.zeros_like(self._share)]
        wire = wire if is_f32 else ""
        client.init(model, first_values, rule="assign", reduce=reduce, wire=wire)

    def start(
        self, pushed: torch.Tensor, out: torch.Tensor, end: Callable[[BaseException | None], None]
    ) -> "Future[Any]":
        """Reduces `pushed` into `out`, other memory. `end` gets None then, or what has failed.

        A worker that is missing is a PeerLostError. The future ends when the operation does.
        """
        found = torch.empty_like(self._share)
        future = self._client.push_pull_async(self._model, [pushed, self._share], out=[out, found])
        future.add_done_callback(
            lambda ended: end(ended.exception() or self._who_is_missing(found.tolist()))
        )
        return future

    def _who_is_missing(self, found: Sequence[float]) -> Exception | None:
        tolerance = self._expected / (4 * self._num_workers)
        wrong = [s for s, value in enumerate(found) if abs(value - self._expected) > tolerance]
        if not wrong:
            return None
        return errors.PeerLostError(
            f'peer_lost: worker {self._client.worker}: model "{self._model}": not all '
            f"{self._num_workers} workers are in the result of servers {wrong}: one has died, "
            f"left, or was frozen; its own log or `dmlcomm ps status` tells which"
        )
