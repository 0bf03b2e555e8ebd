"""The one exception of the lab."""


class LabError(Exception):
    """A lab cannot do what was asked. The text says what, where, and what to try."""


def require(spec: str, holds: bool, expected: str) -> None:
    """Raises LabError for a topology that cannot be, with what was ``expected``."""
    if not holds:
        raise LabError(f'"{spec}" is not possible: {expected}')
