"""What communication raises.

::

    torch.distributed.DistBackendError
    └── CommError                    any failure of communication; see `code`
        ├── PeerLostError            a rank died, or gave no sign of life in time
        ├── CollectiveMismatchError  ranks called different operations, sizes, dtypes or roots
        ├── CommTimeoutError         an operation's deadline has passed
        └── AbortedError             abort() was called, here or on a peer, or the group was closed

A wrong argument of a call (a dtype that cannot be reduced, a tensor of another shape) is a
``ValueError`` or ``TypeError`` before anything is sent. The first failure of a group is kept: its
pending and later operations raise the same error.
"""

import torch.distributed as dist


class CommError(dist.DistBackendError):
    """Communication failed. The message says who, what and where."""

    @property
    def code(self) -> str:
        """The cause in one word: "peer_lost", "mismatch", "timeout", "aborted", "io_error", ..."""
        return str(self).partition(":")[0]


class PeerLostError(CommError):
    """A rank died, was killed, or is frozen for longer than ``DMLCOMM_PEER_TIMEOUT_S``."""


class CollectiveMismatchError(CommError):
    """Ranks called different operations, or the same one with different arguments."""


class CommTimeoutError(CommError):
    """An operation did not end before its deadline."""


class AbortedError(CommError):
    """``abort()`` was called on this rank or on a peer, or the group was closed meanwhile."""
