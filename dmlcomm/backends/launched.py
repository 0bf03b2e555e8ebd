"""The process group of a script that may run with a launcher or without one."""

import os
from typing import Any

import torch.distributed as dist

# Each launcher of torch sets both, and torch reads them.
_VARIABLES = ("RANK", "WORLD_SIZE")


def init(backend: str = "dmlcomm", **options: Any) -> bool:
    """Makes the default process group where a launcher has started this process as one of several.

    That is where RANK or WORLD_SIZE is set: by torchrun, by ``accelerate launch``, in a lab, or by
    the script for Slurm in examples/frameworks/. In a single process, and where there is a default
    group already, it does nothing. So one script runs with and without a launcher.

    Args:
        backend: that of ``init_process_group``, as "cpu:dmlcomm,cuda:nccl".
        options: its other arguments, as ``timeout``.

    Returns:
        Whether there is a default group now.

    Raises:
        ValueError: a launcher has set some of torch's variables only; the text names one that is
            missing.

    Example:
        >>> if dmlcomm.init():
        ...     model = DistributedDataParallel(model)
    """
    if not dist.is_initialized() and any(name in os.environ for name in _VARIABLES):
        dist.init_process_group(backend, **options)
    return bool(dist.is_initialized())
