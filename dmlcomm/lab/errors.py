"""The one exception of the lab."""


class LabError(Exception):
    """A lab cannot do what was asked. The text says what, where, and what to try."""
