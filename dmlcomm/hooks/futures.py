"""Futures for hooks: they fail with what the operation has failed with, and know their device.

`torch.futures.Future.then` makes a RuntimeError of it, and `set_exception` is not seen by DDP.
"""

from collections.abc import Callable
from typing import Any

import torch

from dmlcomm.errors.comm import CommError

Tensors = torch.futures.Future[torch.Tensor]


def future_for(tensor: torch.Tensor) -> Tensors:
    """A future of a tensor that is where this one is.

    On a GPU, its callbacks, and the streams of those who wait for it, follow what the stream had
    that was current when it was completed. Without its device they would follow nothing.
    """
    devices: list[int | str | torch.device] = [tensor.device]
    return torch.futures.Future(devices=None if tensor.device.type == "cpu" else devices)


def complete_after(operation: Any, function: Callable[[], torch.Tensor], result: Tensors) -> None:
    """Makes `result` that of `function`, called when `operation`, a future, has succeeded.

    If `operation` has a device, `function` has a stream there that follows the operation, and
    `result` follows that stream.
    """

    def complete(done: Any) -> None:
        try:
            done.value()
            tensor = function()
        except Exception as error:
            fail(result, error)
        else:
            result.set_result(tensor)

    operation.add_done_callback(complete)


def fail(result: Tensors, error: Exception) -> None:
    """Makes `result` raise `error` to DDP: as it is, if it is a CommError."""
    from dmlcomm import _c10d

    code, message = ("", str(error))
    if isinstance(error, CommError):
        code, _, message = message.partition(": ")
    _c10d.fail_future(result, code, message)
