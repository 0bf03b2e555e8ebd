"""``dmlcomm plan --trace``: writes what ranks do in the format that the file's ending names."""

from importlib import import_module
from pathlib import Path

from dmlcomm.planning.network import PlanError, PlannedNetwork
from dmlcomm.planning.schedules import list_tasks
from dmlcomm.planning.trace import nodes_of_ranks

# Modules with a function `write`; each is imported when it is used.
_WRITERS = {".goal": "dmlcomm.planning.goal", ".et": "dmlcomm.planning.chakra"}


def write(
    path: Path,
    network: PlannedNetwork,
    op: str,
    num_bytes: int,
    element_bytes: int,
    algorithm: str,
) -> None:
    """Raises PlanError for another ending, and ValueError where nothing can be traced."""
    if path.suffix not in _WRITERS:
        raise PlanError(
            f'"{path}" names no format of traces: expected FILE.goal for LogGOPSim and ATLAHS, or '
            "FILE.et for ASTRA-sim"
        )
    listed = list_tasks(network, op, num_bytes, element_bytes, algorithm)
    title = f"{op} of {num_bytes} bytes on {network}, {listed.algorithm}"
    try:
        import_module(_WRITERS[path.suffix]).write(
            nodes_of_ranks(listed.tasks, network.num_ranks), path, title
        )
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error}") from error
