"""Whether the compiled modules fit the torch and the Python files that run. It needs no torch."""

import functools
import importlib.metadata

from dmlcomm import _core


def check(torch_version: str) -> None:
    """Raises ImportError if they do not, and says what to install."""
    if problem := find_problem(torch_version):
        raise ImportError(problem)


def find_problem(torch_version: str) -> str:
    """Empty if all fits with this version of torch."""
    own = _own_version().partition("+")[0]  # a wheel's ends with its torch
    if own and own != _core.VERSION:
        return (
            f"dmlcomm's Python files are of version {own}, its compiled modules of version "
            f"{_core.VERSION}: two installations are mixed; remove both and install one of them "
            "(in a checkout: make build)"
        )
    running = ".".join(torch_version.split(".")[:2])
    if running != _core.TORCH_VERSION:
        return (
            f"this dmlcomm was built for torch {_core.TORCH_VERSION}, and torch {running} is "
            f"running. torch has no stable interface for backends, so each minor version needs its "
            f"own dmlcomm: install the wheel for torch {running} (its version ends with "
            f"+torch{running}), or build it here, from its sources: "
            "pip install --no-build-isolation --force-reinstall --no-deps ."
        )
    return ""


@functools.cache  # each process group asks
def _own_version() -> str:
    """Of the Python files; empty if they are not installed."""
    try:
        return importlib.metadata.version("dmlcomm")
    except importlib.metadata.PackageNotFoundError:
        return ""
