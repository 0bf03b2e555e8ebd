"""The schedules of an operation, of all ranks."""

from dmlcomm import _core
from dmlcomm.planning.network import PlanError, PlannedNetwork

# A ring of N ranks has 2 N (N - 1) messages, of three tasks each: 1.4 GB here.
MOST_RANKS = 512


def list_tasks(
    network: PlannedNetwork, op: str, num_bytes: int, element_bytes: int, algorithm: str = ""
) -> _core.TaskList:
    """``algorithm``: by default the choice of a job. Raises ValueError."""
    if network.num_ranks > MOST_RANKS:
        raise PlanError(
            f"{network} has {network.num_ranks} ranks: schedules of up to {MOST_RANKS} are listed; "
            "`dmlcomm plan` prices larger networks"
        )
    core, job = network.core(), network.of_job()
    return _core.list_tasks(core, job, op, num_bytes, element_bytes, algorithm)
