"""Congestion controls of TCP: what each costs beyond headers, in networks of one rate and MTU 1500.

An experiment of ``__main__``. The rows without a name of a control are what dmlcomm chooses.
"""

import sys
from pathlib import Path

from benchmarks.lab_run import bound_s, iterations_in, measured_lines
from benchmarks.multi_nic.settings import ETHERNET_MTU, WITH_HEADERS, Settings
from benchmarks.row import Row
from dmlcomm.lab import Lab, Options

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
MOST_OF_BOUND_CHOSEN = 1.05
CHOSEN = ""  # by dmlcomm, where the machine's control is what it is


def rows(settings: Settings) -> list[Row]:
    """A row for each network, control of this kernel, and pace."""
    available = AVAILABLE.read_text().split()
    controls = [CHOSEN, *(name for name in settings.controls if name in available)]
    return [
        row
        for spec, rate, operation in settings.congested
        for control in controls
        for row in _measured(settings, spec, rate, operation, control)
    ]


def _measured(settings: Settings, spec: str, rate: str, operation: str, control: str) -> list[Row]:
    """As the connections are, and paced at the rate that was learned: two rows.

    The routes of the lab choose a control that is not dmlcomm's choice, as an administrator does.
    """
    size = settings.sizes[0]
    with Lab(spec, rate=rate, options=Options(mtu=ETHERNET_MTU, congestion=control)) as lab:
        bound = bound_s(lab.graph(), size, operation)
        command = [sys.executable, "-m", "benchmarks.multi_nic.congestion_rank", operation]
        command += [str(size), str(iterations_in(settings.seconds, bound))]
        shape = spec if spec.startswith("bcube") else "flat"
        environment = (f"DMLCOMM_TOPOLOGY={shape}", "GLOO_SOCKET_IFNAME=mgmt0")
        results = measured_lines(lab, command, [w for e in environment for w in ("-e", e)])
    return [
        Row(
            experiment="congestion",
            case=_case(spec, rate, operation, control, result),
            seconds=result["seconds"],
            bound_s=bound * WITH_HEADERS,
            most_of_bound=None if control or result["paced"] else MOST_OF_BOUND_CHOSEN,
            wrong=result["wrong"],
            resent=result["resent"],
        )
        for result in results
    ]


def _case(spec: str, rate: str, operation: str, control: str, result: dict) -> str:
    used = control or f"chosen: {result['congestion']}"
    return f"{spec} at {rate}, {operation}, {used}{', paced' if result['paced'] else ''}"
