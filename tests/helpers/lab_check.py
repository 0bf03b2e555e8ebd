"""``lab check`` on machines that are not always given their cores' time."""

import json
from typing import Any

from helpers.lab_scripts import lab_command
from helpers.waiting import eventually


def exact_report(lab_name: str, payload_bps: Any = None) -> dict[str, Any]:
    """What ``lab check --json`` says of a lab as soon as it finds its rates exact.

    Args:
        payload_bps: and as soon as that is what the slowest connection has received.
    """

    def report() -> dict[str, Any] | None:
        result = lab_command("check", "--name", lab_name, "--seconds", "3", "--json", deadline_s=60)
        assert result.stdout, result.stderr
        found = json.loads(result.stdout)
        assert result.returncode == (0 if found["exact"] else 1), result.stderr
        is_whole = payload_bps is None or found["least_payload_bps"] == payload_bps
        return found if found["exact"] and is_whole else None

    return eventually(report, f"a check of {lab_name} finding it exact")
