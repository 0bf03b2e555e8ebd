"""The exceptions that do without torch: the base, and those of labs, switches and servers."""

from collections.abc import Sequence


class Error(Exception):
    """Anything that dmlcomm raises, but for wrong arguments. The text says what, where, and what to
    try.
    """

    _code = "error"

    @property
    def code(self) -> str:
        """The cause in one word, as "peer_lost", "timeout" or "connection"."""
        return self._code


class LabError(Error):
    """A lab cannot do what was asked. The text says what, where, and what to try."""

    _code = "lab"


class SwitchError(Error):
    """A switch cannot schedule as asked. The text says what, where, and what to try."""

    _code = "switch"


class PsError(Error, RuntimeError):
    """The parameter server failed. The text says who, what, and what to try."""


class PsConnectionError(PsError):
    """A server does not answer at its address."""

    _code = "connection"


class PsServerLostError(PsError):
    """A server died, and with it something that is still needed.

    Attributes:
        servers: which ones.
    """

    _code = "server_lost"

    def __init__(self, message: str, servers: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.servers = list(servers)


class PsRefusedError(PsError):
    """A server does not let this worker in: token, version, TLS, settings, or a taken number."""

    _code = "refused"


class PsModelError(PsError):
    """The servers do not know the model, or know another one by this name."""

    _code = "model"


class PsTimeoutError(PsError, TimeoutError):
    """An operation did not end before its deadline."""

    _code = "timeout"


class PsCheckpointError(PsError):
    """A checkpoint cannot be used: it is damaged, or of another server or model."""

    _code = "checkpoint"
