"""Which communication goes first: tickets, and what gives them in a training.

`dmlcomm.ticket` and `dmlcomm.DistributedOptimizer` come from here. docs/tickets.md describes all.
torch is imported when a name that needs it is used.
"""

from typing import TYPE_CHECKING

from dmlcomm.lazy import lazy_names
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


__getattr__, __dir__ = lazy_names(__name__, __all__, _HOMES)
