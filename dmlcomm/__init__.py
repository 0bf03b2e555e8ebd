"""dmlcomm: a backend of ``torch.distributed`` for machines with several network cards.

    torch.distributed.init_process_group("dmlcomm")

is all that a training script needs. What this package adds to the functions of torch.distributed is
listed in ``__all__``; torch itself is imported when the first of them is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dmlcomm.backends import register_at_import

if TYPE_CHECKING:
    from dmlcomm.backends.groups import abort, describe, monitored_barrier, rails, set_timeout
    from dmlcomm.errors import (
        AbortedError,
        CollectiveMismatchError,
        CommError,
        CommTimeoutError,
        PeerLostError,
    )

_HOMES = {
    "AbortedError": "dmlcomm.errors",
    "CollectiveMismatchError": "dmlcomm.errors",
    "CommError": "dmlcomm.errors",
    "CommTimeoutError": "dmlcomm.errors",
    "PeerLostError": "dmlcomm.errors",
    "abort": "dmlcomm.backends.groups",
    "describe": "dmlcomm.backends.groups",
    "monitored_barrier": "dmlcomm.backends.groups",
    "rails": "dmlcomm.backends.groups",
    "set_timeout": "dmlcomm.backends.groups",
}

__all__ = [
    "AbortedError",
    "CollectiveMismatchError",
    "CommError",
    "CommTimeoutError",
    "PeerLostError",
    "abort",
    "describe",
    "monitored_barrier",
    "rails",
    "set_timeout",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dmlcomm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_at_import()
