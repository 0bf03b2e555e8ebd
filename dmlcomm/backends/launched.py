"""The process group of a script that may run with a launcher or without one."""

import os
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

# Each launcher of torch sets both, and torch reads them.
_VARIABLES = ("RANK", "WORLD_SIZE")

# Arguments that say the same as these variables.
_ARGUMENTS = ("rank", "world_size")


@dataclass(frozen=True)
class _Launcher:
    """One that starts several processes, and sets none of torch's variables in them."""

    name: str
    world_size: str
    rank: str
    local_rank: str


_OTHERS = (
    # Of the step that srun starts: the script of sbatch has the others of the job, and is alone.
    _Launcher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    _Launcher(
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    _Launcher("mpirun of MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
)


def init(backend: str = "dmlcomm", **options: Any) -> bool:
    """Makes the default process group where a launcher has started this process as one of several.

    That is where RANK or WORLD_SIZE is set: by torchrun, by ``accelerate launch``, in a lab, or by
    the script for Slurm in examples/frameworks/; or where the caller gives ``rank`` or
    ``world_size``. In a single process, and where there is a default group already, it does
    nothing. So one script runs with and without a launcher.

    Args:
        backend: that of ``init_process_group``, as "cpu:dmlcomm,cuda:nccl".
        options: its other arguments, as ``timeout``.

    Returns:
        Whether there is a default group now.

    Raises:
        ValueError: a launcher has set some of torch's variables only, and the text names one that
            is missing; or srun or mpirun has started several processes, and torch does not know it.

    Example:
        >>> if dmlcomm.init():
        ...     model = DistributedDataParallel(model)
    """
    if dist.is_initialized():
        return True
    if not any(name in os.environ for name in _VARIABLES) and not any(
        name in options for name in _ARGUMENTS
    ):
        _check_alone()
        return False
    dist.init_process_group(backend, **options)
    return True


def _check_alone() -> None:
    """
    Raises:
        ValueError: a launcher of `_OTHERS` has started more than this process.
    """
    for launcher in _OTHERS:
        names = (launcher.world_size, launcher.rank, launcher.local_rank)
        found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        count = os.environ.get(launcher.world_size, "")
        if count.isdecimal() and int(count) > 1:
            raise ValueError(
                f"dmlcomm.init: {launcher.name} has started {count} processes "
                f"({', '.join(found)}), and torch's RANK and WORLD_SIZE are not set, so each would "
                f"train alone: set WORLD_SIZE=${launcher.world_size}, RANK=${launcher.rank}, "
                f"LOCAL_RANK=${launcher.local_rank}, and MASTER_ADDR and MASTER_PORT to rank 0's "
                "host and a free port there, as examples/frameworks/slurm.sbatch does; or use "
                "torchrun. If each is to train alone, leave dmlcomm.init() out"
            )
