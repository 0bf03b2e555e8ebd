"""Rate, delay and loss of one direction of a link, through netlink.

The rate is a token bucket (tbf) at the sending interface, counting whole Ethernet frames. Three
sizes decide whether it is exact and what it costs:

- TCP hands packets of up to 64 KiB to an interface, and tbf cuts those that exceed its burst into
  frames, at ten times the CPU time. So the burst exceeds the largest packet, and the interface is
  told to make packets no larger than the rate sends in BURST_US. Connections ask for that size with
  their route only, so after a change they look up their routes again.
- A burst of BURST_US also covers the time by which the kernel may wake the queue late: what is not
  sent in that time would be lost for good.
- The queue holds what waits for the rate: QUEUE_US of it, as the port of a switch does.

Delay is netem's. Loss happens where packets arrive, in nftables, after the link has carried them;
each packet is then a frame, which GSO is told.
"""

import contextlib
import errno
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from dmlcomm.errors import LabError
from dmlcomm.lab import loss
from dmlcomm.topology.shape import Shape

BURST_US = 2_000
QUEUE_US = 20_000

# An Ethernet header and the headers that repeat in every frame when a large packet is cut.
FRAME_HEADER_BYTES = 14
HEADERS_BYTES = 66

LARGEST_PACKET_BYTES = 65_536
LEAST_FRAMES = 4
LEAST_QUEUE_BYTES = 256 * 1024

_UNUSED_NETWORK = "192.0.2.0/32"  # of the addresses that are for documentation

_ROOT = 0x10000
_FIRST_CHILD = 0x10001
_DELAY_HANDLE = 0x100000
_TC_H_ROOT = 0xFFFFFFFF
_NO_LIMIT_SEGMENTS = 65_535
_NETEM_QUEUE_PACKETS = 100_000


def packet_bytes(rate_bps: int | None, mtu: int) -> int:
    if rate_bps is None:
        return LARGEST_PACKET_BYTES
    least = LEAST_FRAMES * (mtu + FRAME_HEADER_BYTES)
    return min(max(rate_bps * BURST_US // 8_000_000, least), LARGEST_PACKET_BYTES)


def burst_bytes(rate_bps: int, mtu: int) -> int:
    """Bytes that may be sent at once: BURST_US of the rate, but at least one largest packet."""
    largest = packet_bytes(rate_bps, mtu)
    frames = -(-largest // (mtu - HEADERS_BYTES))
    return max(rate_bps * BURST_US // 8_000_000, largest + (frames + 1) * HEADERS_BYTES)


def queue_bytes(rate_bps: int) -> int:
    return max(rate_bps * QUEUE_US // 8_000_000, LEAST_QUEUE_BYTES)


def shape_egress(ip: IPRoute, index: int, mtu: int, shape: Shape) -> None:
    """Rate and delay of what interface ``index`` sends, in the namespace of ``ip``.

    Replaces what was set before. Raises LabError where the kernel lacks the means.
    """
    with contextlib.suppress(NetlinkError):  # there is none at first
        ip.tc("del", index=index, parent=_TC_H_ROOT)
    segments = 1 if shape.loss else _NO_LIMIT_SEGMENTS
    size = packet_bytes(shape.rate_bps, mtu)
    ip.link("set", index=index, gso_max_size=size, gso_max_segs=segments)
    parent = _TC_H_ROOT
    if shape.delay_us:
        _add_delay(ip, index, shape.delay_us)
        parent = _FIRST_CHILD
    if shape.rate_bps is not None:
        handle = _ROOT if parent == _TC_H_ROOT else _DELAY_HANDLE
        rate = shape.rate_bps
        burst, limit = burst_bytes(rate, mtu), burst_bytes(rate, mtu) + queue_bytes(rate)
        options = {"rate": rate // 8, "burst": burst, "limit": limit}
        ip.tc("add", "tbf", index=index, handle=handle, parent=parent, **options)


def renew_routes(ip: IPRoute) -> None:
    """Makes the connections of the namespace of ``ip`` look up their routes again.

    They do so after every change of the routes.
    """
    unused = {"dst": _UNUSED_NETWORK, "type": "blackhole"}
    ip.route("add", **unused)
    ip.route("del", **unused)


def shape_ingress(interface: str, shape: Shape) -> None:
    """Loss of what arrives at ``interface``, in the network namespace of this process."""
    if shape.loss:
        loss.lose(interface, shape.loss)
    else:
        loss.keep(interface)


def _add_delay(ip: IPRoute, index: int, delay_us: int) -> None:
    options: dict[str, Any] = {"delay": delay_us, "limit": _NETEM_QUEUE_PACKETS}
    try:
        ip.tc("add", "netem", index=index, handle=_ROOT, parent=_TC_H_ROOT, **options)
    except NetlinkError as error:
        if error.code != errno.ENOENT:
            raise
        raise LabError(
            "this kernel cannot delay packets: it has no netem (CONFIG_NET_SCH_NETEM; "
            "as root: modprobe sch_netem). Rate and loss work without it"
        ) from error
