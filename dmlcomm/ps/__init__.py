"""The parameter server: push, pull and clock, from torch or from NumPy.

    client = dmlcomm.ps.Client("10.0.0.1:7000,10.0.0.2:7000")
    weights = client.init("net", weights, rule="sgd", lr=0.1)
    weights = client.push_pull("net", gradients, staleness=0)

`DistributedOptimizer`, `from_torch` and `ps_hook` put it below a training loop of torch. Servers
are started with ``dmlcomm ps serve`` or ``dmlcomm run``, or as a `Server` inside a process. Neither
they nor a `Client` of NumPy arrays load torch. Errors are below `dmlcomm.PsError`.
"""

from typing import TYPE_CHECKING

from dmlcomm.lazy import lazy_names

if TYPE_CHECKING:
    from dmlcomm.ps.server.server import Server, ServerOptions
    from dmlcomm.ps.tls import Tls
    from dmlcomm.ps.worker.client import Client
    from dmlcomm.ps.worker.hook import HookState, ps_hook
    from dmlcomm.ps.worker.optimizer import DistributedOptimizer, from_torch

_HOMES = {
    "Client": "dmlcomm.ps.worker.client",
    "DistributedOptimizer": "dmlcomm.ps.worker.optimizer",
    "HookState": "dmlcomm.ps.worker.hook",
    "Server": "dmlcomm.ps.server.server",
    "ServerOptions": "dmlcomm.ps.server.server",
    "Tls": "dmlcomm.ps.tls",
    "from_torch": "dmlcomm.ps.worker.optimizer",
    "ps_hook": "dmlcomm.ps.worker.hook",
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


__getattr__, __dir__ = lazy_names(__name__, __all__, _HOMES)
