"""Futures for hooks that fail with what the operation has failed with.

`torch.futures.Future.then` makes a RuntimeError of it, and `set_exception` is not seen by DDP.
"""

from collections.abc import Callable
from typing import Any

import torch

from dmlcomm.errors.comm import CommError

Tensors = torch.futures.Future[torch.Tensor]


def complete_after(operation: Any, function: Callable[[], torch.Tensor], result: Tensors) -> None:
    """Makes `result` that of `function`, called when `operation`, a future, has succeeded."""

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
