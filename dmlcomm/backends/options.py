"""Options of a process group, beside torch's."""

from datetime import timedelta

from torch._C._distributed_c10d import Backend as C10dBackend

from dmlcomm import _core
from dmlcomm.network import seat


class Options(C10dBackend.Options):
    """What `init_process_group` and `new_group` take as `pg_options`.

    Args:
        priority: of the group's traffic among the jobs of a host, 0 (first) to 7, where a proxy
            shares its NICs. Default: DMLCOMM_JOB_PRIORITY, else 4.
        algorithm: of the group's operations, as in DMLCOMM_ALGORITHM, the same on all ranks.
            Default: DMLCOMM_ALGORITHM, else the planner decides.

    Raises ValueError.

    Example:
        >>> torch.distributed.init_process_group("dmlcomm", pg_options=dmlcomm.Options(priority=0))
    """

    def __init__(self, *, priority: int | None = None, algorithm: str = "") -> None:
        super().__init__("dmlcomm", timedelta(minutes=30))
        if algorithm:
            _core.check_algorithm(algorithm)
        self.algorithm = algorithm
        self.priority = seat.priority_of(priority)
