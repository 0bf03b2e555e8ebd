"""The parameter server: push, pull and clock, from torch or from NumPy.

    client = dmlcomm.ps.Client("10.0.0.1:7000,10.0.0.2:7000")
    weights = client.init("net", weights, rule="sgd", lr=0.1)
    weights = client.push_pull("net", gradients, staleness=0)

Servers are started with ``dmlcomm ps serve``, or as a `Server` inside a process. Neither they nor a
`Client` of NumPy arrays load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmlcomm.ps.client import Client
    from dmlcomm.ps.hook import HookState, ps_hook
    from dmlcomm.ps.optimizer import DistributedOptimizer, from_torch
    from dmlcomm.ps.server import Server, ServerOptions
    from dmlcomm.ps.tls import Tls

_HOMES = {
    "Client": "dmlcomm.ps.client",
    "DistributedOptimizer": "dmlcomm.ps.optimizer",
    "HookState": "dmlcomm.ps.hook",
    "Server": "dmlcomm.ps.server",
    "ServerOptions": "dmlcomm.ps.server",
    "Tls": "dmlcomm.ps.tls",
    "from_torch": "dmlcomm.ps.optimizer",
    "ps_hook": "dmlcomm.ps.hook",
}

__all__ = [
    "Client",
    "DistributedOptimizer",
    "HookState",
    "Server",
    "ServerOptions",
    "Tls",
    "from_torch",
    "ps_hook",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dmlcomm.ps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
