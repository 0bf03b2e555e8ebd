"""Common parts of commands: the console for their output, and the environment that they pass on."""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Tables keep their shape where the output is not a terminal.
LOG_WIDTH = 120


def console(**options: Any) -> "Console":
    """For the standard output. ``options``: those of `rich.console.Console`."""
    from rich.console import Console  # what only hands on the environment does without

    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, **options)


def inherited_environment() -> dict[str, str]:
    """A copy of the caller's, whatever is in it. Settings of dmlcomm are read by the core."""
    return dict(os.environ)
