"""What communication raises.

::

    torch.distributed.DistBackendError
    └── CommError                    any failure of a process group; see `code`
        ├── PeerLostError            a rank died, or gave no sign of life in time
        ├── CollectiveMismatchError  ranks called different operations, sizes, dtypes or roots
        ├── CommTimeoutError         an operation's deadline has passed
        └── AbortedError             abort() was called, here or on a peer, or the group was closed

    RuntimeError
    └── PsError                      any failure of the parameter server; see `code`
        ├── PsConnectionError        a server does not answer
        ├── PsServerLostError        a server died, and what it had is needed; see `servers`
        ├── PsRefusedError           not let in: token, version, TLS, a number that is taken
        ├── PsModelError             the model is unknown, or another one than the servers have
        ├── PsTimeoutError           an operation's deadline has passed
        └── PsCheckpointError        a checkpoint is damaged, or of another job

A wrong argument of a call (a dtype that cannot be reduced, a tensor of another shape) is a
``ValueError`` or ``TypeError`` before anything is sent. The first failure of a group is kept: its
later operations raise the same error, and so do pending ones that wait for another rank.

The classes of process groups load torch when they are first used; those of the parameter server do
without it.
"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmlcomm.backends.errors import (
        AbortedError,
        CollectiveMismatchError,
        CommError,
        CommTimeoutError,
        PeerLostError,
    )

__all__ = [
    "AbortedError",
    "CollectiveMismatchError",
    "CommError",
    "CommTimeoutError",
    "PeerLostError",
    "PsCheckpointError",
    "PsConnectionError",
    "PsError",
    "PsModelError",
    "PsRefusedError",
    "PsServerLostError",
    "PsTimeoutError",
]


class PsError(RuntimeError):
    """The parameter server failed. The message says who, what, and what to try."""

    @property
    def code(self) -> str:
        """The cause in one word: "connection", "server_lost", "refused", "model", ..."""
        return "error"


class PsConnectionError(PsError):
    """A server does not answer at its address."""

    @property
    def code(self) -> str:
        return "connection"


class PsServerLostError(PsError):
    """A server died, and with it something that is still needed.

    Attributes:
        servers: which ones.
    """

    def __init__(self, message: str, servers: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.servers = list(servers)

    @property
    def code(self) -> str:
        return "server_lost"


class PsRefusedError(PsError):
    """A server does not let this worker in: token, version, TLS, or a number that is taken."""

    @property
    def code(self) -> str:
        return "refused"


class PsModelError(PsError):
    """The servers do not know the model, or know another one by this name."""

    @property
    def code(self) -> str:
        return "model"


class PsTimeoutError(PsError, TimeoutError):
    """An operation did not end before its deadline."""

    @property
    def code(self) -> str:
        return "timeout"


class PsCheckpointError(PsError):
    """A checkpoint cannot be used: it is damaged, or of another server or model."""

    @property
    def code(self) -> str:
        return "checkpoint"


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("dmlcomm.backends.errors"), name)
    raise AttributeError(f"module 'dmlcomm.errors' has no attribute {name!r}")
