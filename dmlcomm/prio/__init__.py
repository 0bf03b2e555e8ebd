"""Which communication goes first: tickets, and what gives them in a training.

`dmlcomm.ticket` and `dmlcomm.DistributedOptimizer` come from here. docs/tickets.md describes all.
torch is imported when a name that needs it is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dmlcomm.prio.ticket import current_ticket, ticket

if TYPE_CHECKING:
    from dmlcomm.prio.ddp_hook import HookState, comm_hook
    from dmlcomm.prio.fsdp import ticket_fsdp
    from dmlcomm.prio.optimizer import DistributedOptimizer

_HOMES = {
    "DistributedOptimizer": "dmlcomm.prio.optimizer",
    "HookState": "dmlcomm.prio.ddp_hook",
    "comm_hook": "dmlcomm.prio.ddp_hook",
    "ticket_fsdp": "dmlcomm.prio.fsdp",
}

__all__ = [
    "DistributedOptimizer",
    "HookState",
    "comm_hook",
    "current_ticket",
    "ticket",
    "ticket_fsdp",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dmlcomm.prio' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
