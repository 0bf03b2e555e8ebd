"""The exceptions of the parameter server, in clients and in servers."""

from collections.abc import Sequence

from dmlcomm.errors.base import Error


class PsError(Error, RuntimeError):
    """The parameter server failed. The text says who, what, and what to try."""


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
