"""Processes on hosts of a lab that use its NICs."""

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from dmlcomm.lab import Lab, sampling
from dmlcomm.lab import client as lab_client
from dmlcomm.topology import graph as topology
from helpers.parameter_servers import clean_environment

# In the network of a host: nothing leaves for these addresses.
_SEPARATE = """
import sys
from pyroute2 import IPRoute
with IPRoute() as route:
    for address in sys.argv[1:]:
        route.route("add", dst=f"{address}/32", type="blackhole")
"""

# In the network of a host: nothing leaves it, and nothing comes; "up" ends that.
_SET_LINKS = """
import sys
from pyroute2 import IPRoute
with IPRoute() as route:
    for link in route.get_links():
        if link.get_attr("IFLA_IFNAME") != "lo":
            route.link("set", index=link["index"], state=sys.argv[1])
"""


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


def data_address(lab: Lab, host: str) -> str:
    """Of the only NIC."""
    (end,) = topology.ends_of(lab.graph(), host)
    return str(end.ip)


def separate(lab: Lab, host: str, addresses: list[str]) -> None:
    """Nothing leaves the host for these any more, also on connections that there are."""
    command = [sys.executable, "-c", _SEPARATE, *addresses]
    lab.exec(host, command, env=clean_environment(), check=True)


def darken(lab: Lab, host: str) -> None:
    """No link of the host works any more, also of its management."""
    _set_links(lab, host, "down")


@contextlib.contextmanager
def dark(lab: Lab, host: str) -> Iterator[None]:
    """No link of the host works within the block."""
    darken(lab, host)
    try:
        yield
    finally:
        _set_links(lab, host, "up")


def _set_links(lab: Lab, host: str, state: str) -> None:
    command = [sys.executable, "-c", _SET_LINKS, state]
    lab.exec(host, command, env=clean_environment(), check=True)


def crossed(lab: Lab, place: str) -> int:
    """Bytes that have gone over the cable at this interface, the less busy direction."""
    with lab_client.Client(lab.name) as client:
        traffic = sampling.measure(client, interval_s=0.05)
    (cable,) = (entry for entry in traffic if place in map(str, entry.link.ends))
    return min(direction.bytes for direction in cable.directions)
