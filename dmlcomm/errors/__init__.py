"""The exceptions of dmlcomm.

::

    Exception
    └── Error                            of which all others are; `code` is the cause in one word
        ├── CommError                    any failure of a process group; a DistBackendError, too
        │   ├── PeerLostError            a rank died, or gave no sign of life in time
        │   ├── CollectiveMismatchError  ranks called different operations, sizes, dtypes or roots
        │   ├── CommTimeoutError         an operation's deadline has passed
        │   └── AbortedError             abort() was called, here or elsewhere, or the group closed
        ├── PsError                      any failure of the parameter server; a RuntimeError, too
        │   ├── PsConnectionError        a server does not answer
        │   ├── PsServerLostError        a server died, and its part is needed; see `servers`
        │   ├── PsRefusedError           not let in: token, version, TLS, a number that is taken
        │   ├── PsModelError             the model is unknown, or another one than the servers have
        │   ├── PsTimeoutError           an operation's deadline has passed; a TimeoutError, too
        │   └── PsCheckpointError        a checkpoint is damaged, or of another job
        ├── LabError                     a lab cannot do what was asked
        └── SwitchError                  a switch cannot schedule as asked

A wrong argument of a call (a dtype that cannot be reduced, a tensor of another shape) is a
``ValueError`` or ``TypeError`` before anything is sent. The first failure of a process group is
kept: its later operations raise the same error, and so do pending ones that wait for another rank.

All classes are in `dmlcomm`, too. Those of process groups load torch when they are first used;
the others do without it.

Example:
    >>> try:
    ...     torch.distributed.all_reduce(tensor)
    ... except dmlcomm.PeerLostError as error:
    ...     print(error)  # which rank, on which host, in which operation
"""

from typing import TYPE_CHECKING

from dmlcomm.errors.base import (
    Error,
    LabError,
    PsCheckpointError,
    PsConnectionError,
    PsError,
    PsModelError,
    PsRefusedError,
    PsServerLostError,
    PsTimeoutError,
    SwitchError,
)
from dmlcomm.lazy import lazy_names

if TYPE_CHECKING:
    from dmlcomm.errors.comm import (
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
    "Error",
    "LabError",
    "PeerLostError",
    "PsCheckpointError",
    "PsConnectionError",
    "PsError",
    "PsModelError",
    "PsRefusedError",
    "PsServerLostError",
    "PsTimeoutError",
    "SwitchError",
]


_OF_TORCH = [name for name in __all__ if name not in globals()]

__getattr__, __dir__ = lazy_names(
    __name__, __all__, dict.fromkeys(_OF_TORCH, "dmlcomm.errors.comm")
)
