"""How torch.distributed finds dmlcomm: by entry point (torch 2.14 and later), or by import."""

import importlib.metadata
import sys

ENTRY_POINT_GROUP = "torch.distributed.backends"


def register() -> None:
    """Makes ``init_process_group("dmlcomm")`` known to torch. Idempotent; imports torch.

    Raises ImportError if dmlcomm was built for another torch.
    """
    import torch

    from dmlcomm.backends import creator, versions

    versions.check(torch.__version__)
    creator.register()


def register_at_import() -> None:
    """Registers now, unless torch is not loaded yet and will find dmlcomm by itself later.

    Raises ImportError if dmlcomm was built for another torch than the one that is loaded. Where
    none is loaded that is an error of the first process group: commands need none.
    """
    if "torch" in sys.modules:
        register()
    elif not _is_found_by_name():
        from dmlcomm.backends import creator

        creator.register()


def _is_found_by_name() -> bool:
    """Whether a later ``init_process_group("dmlcomm")`` loads the entry point, or has no torch."""
    try:
        major, minor = importlib.metadata.version("torch").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return True
    if (int(major), int(minor)) < (2, 14):
        return False
    return bool(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name="dmlcomm"))
