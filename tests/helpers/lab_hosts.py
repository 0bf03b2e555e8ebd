"""Processes on hosts of a lab that use its NICs."""

import functools
from typing import Any

from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology


def on_host(lab: Lab, host: str, **environment: str) -> dict[str, Any]:
    """What starts a process there, and which NICs it uses there."""
    names = topology.interfaces(lab.graph(), host)
    return {
        "popen": functools.partial(lab.popen, host),
        "DMLCOMM_SOCKET_IFNAME": ",".join(f"={name}" for name in names),
        **environment,
    }


def management_address(lab: Lab, host: str) -> str:
    address: str = lab.graph().nodes[host]["management"].partition("/")[0]
    return address
