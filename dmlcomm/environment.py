"""The caller's environment, which commands and ranks that are started inherit.

Nothing here is a setting of dmlcomm: those are read by the core.
"""

import os


def inherited() -> dict[str, str]:
    """A copy of it, whatever is in it."""
    return dict(os.environ)
