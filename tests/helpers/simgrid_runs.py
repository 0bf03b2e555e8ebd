"""SimGrid beside our simulator: Debian's ``python3-simgrid``, or the package ``simgrid`` of PyPI.

It runs in a process of its own: its module may belong to another Python than the tests', and a
process has one SimGrid.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("simgrid_script.py")
DEADLINE_S = 120

Flow = tuple[Sequence[int], int, float]  # path, bytes, start in seconds


@functools.cache
def python_with_simgrid() -> str | None:
    """The Python that has SimGrid's module: ours or the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            command = [python, "-c", "import simgrid"]
            found = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
        except OSError:
            continue
        if found.returncode == 0:
            return python
    return None


def play(
    capacities: Sequence[float],
    flows: Sequence[Flow],
    latencies: Sequence[float] | None = None,
    wants_rates: bool = False,
    deadline_s: float = DEADLINE_S,
) -> dict[str, Any]:
    """What SimGrid says of flows: ``ends`` or ``rates``, and ``cpu_s``.

    Where there is none the test is skipped; in continuous integration it fails, as `make test`
    installs it.

    Args:
        capacities: bit/s, by link.
        flows: path, bytes and start of each.
        latencies: seconds, by link; by default 0.
        wants_rates: the rates of all at once, not their ends.
        deadline_s: for the whole.
    """
    python = python_with_simgrid()
    if python is None:
        reason = "no Python here has SimGrid: install python3-simgrid (Debian, Ubuntu)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    asked = {
        "capacities": list(capacities),
        "latencies": list(latencies or [0] * len(capacities)),
        "flows": [[list(path), num_bytes, start_s] for path, num_bytes, start_s in flows],
        "wants_rates": wants_rates,
    }
    result = subprocess.run(
        [python, str(SCRIPT)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
