"""``lab check`` on machines that are not always given their cores' time."""

import json
import subprocess
import sys
from typing import Any

from helpers.waiting import eventually


def exact_report(lab_name: str) -> dict[str, Any]:
    """What ``lab check --json`` says of a lab as soon as it finds its rates exact."""
    command = [sys.executable, "-m", "dmlcomm.lab", "check", "--name", lab_name]

    def report() -> dict[str, Any] | None:
        result = subprocess.run(
            [*command, "--seconds", "3", "--json"], capture_output=True, text=True, timeout=60
        )
        assert result.stdout, result.stderr
        found = json.loads(result.stdout)
        assert result.returncode == (0 if found["exact"] else 1), result.stderr
        return found if found["exact"] else None

    return eventually(report, f"a check of {lab_name} finding it exact")
