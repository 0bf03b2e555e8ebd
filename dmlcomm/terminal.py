"""What commands print to."""

import sys
from typing import Any

from rich.console import Console

# Tables keep their shape where the output is not a terminal.
LOG_WIDTH = 120


def console(**options: Any) -> Console:
    """For the standard output. ``options``: those of `rich.console.Console`."""
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, **options)
