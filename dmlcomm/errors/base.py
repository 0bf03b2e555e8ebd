"""The base of all errors, and the one of the lab."""


class Error(Exception):
    """Anything that dmlcomm raises, but for wrong arguments. The text says what, where, and what to
    try.
    """

    @property
    def code(self) -> str:
        """The cause in one word, as "peer_lost", "timeout" or "connection"."""
        return "error"


class LabError(Error):
    """A lab cannot do what was asked. The text says what, where, and what to try."""

    @property
    def code(self) -> str:
        return "lab"
