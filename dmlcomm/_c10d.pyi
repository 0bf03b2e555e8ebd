"""dmlcomm's backend of torch.distributed."""

from datetime import timedelta
from typing import Any

from torch.distributed import Store
from torch.distributed.distributed_c10d import Backend

RECORDS_FLIGHTS: bool

def create(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    name: str,
    global_ranks: list[int],
    rails: list[tuple[str, str]],
    grid: list[int],
    host_of_rank: list[int],
    is_whole_job: bool,
    rail_rates_bps: list[int],
    plan: str,
    algorithm: str,
    servers: Any = None,
    seat: int = -1,
    is_formed: bool = True,
) -> Backend: ...

class GroupOptions:
    """`Backend.Options` of a group, read only."""

    @property
    def algorithm(self) -> str:
        """As it was given; empty: that of the configuration."""
    @property
    def priority(self) -> int: ...
    @property
    def is_reconfigured(self) -> bool:
        """Whether `reconfigure` has named its ranks."""

class ServerOperation:
    """An all_reduce that the parameter servers carry out; the first end counts."""

    def succeed(self) -> None: ...
    def fail(self, code: str, message: str) -> None:
        """Ends it with an error, and the group, too. `code`: as `CommError.code`."""

def fail_future(future: Any, code: str, message: str) -> None:
    """Ends a torch.futures.Future with an error that C++ sees, too.

    `code`: as `CommError.code`; empty: it is a RuntimeError.
    """

def set_given_options(backend: Backend, algorithm: str, priority: int) -> None:
    """Keeps the settings that the group was made with; `GroupOptions` shows them."""

def set_timeout(backend: Backend, timeout: timedelta) -> None: ...
def abort(backend: Backend, reason: str) -> None: ...
def description(backend: Backend) -> str: ...
def rails(backend: Backend) -> list[dict[str, Any]]: ...
def start_rail_trace() -> None: ...
def stop_rail_trace() -> list[dict[str, Any]]: ...
def close_all() -> None: ...
