"""The exceptions of process groups. Apart from the others, since their base class is torch's."""

import torch.distributed as dist

from dmlcomm.errors.base import Error


class CommError(Error, dist.DistBackendError):
    """Communication failed. The text says who, what and where."""

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
