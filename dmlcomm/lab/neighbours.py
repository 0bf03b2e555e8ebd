"""Ethernet addresses of a large lab's neighbours, written down before anybody asks for them.

The kernel has one table of learned addresses for all network namespaces together. It is full with
1024 entries (`net.ipv4.neigh.default.gc_thresh3`, which is the machine's and not the lab's); then
hosts do not reach each other. In flat:64,2 each host talks to 63 others over two NICs: 8064
entries. Those that are written down do not count. They go to the kernel in one call per NIC:
one of pyroute2 for each entry is too slow for so many.
"""

import os
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager

import networkx as nx
from pyroute2 import IPRoute

from dmlcomm.errors import LabError
from dmlcomm.lab.routes import segments
from dmlcomm.topology.graph import End

# Leaves room for the management network, the machine itself, and another lab.
MOST_LEARNED = 256

# As in linux/netlink.h, linux/rtnetlink.h and linux/neighbour.h.
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # family, interface, state, flags, type
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_ERROR = struct.Struct("=i")
_NEW_NEIGHBOUR = 28  # RTM_NEWNEIGH
_REQUEST, _ACKNOWLEDGE, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_PERMANENT = 0x80  # NUD_PERMANENT
_IP_ADDRESS, _ETHERNET_ADDRESS = 1, 2  # NDA_DST, NDA_LLADDR

Inside = Callable[[str], AbstractContextManager[IPRoute]]


def write_down(graph: nx.Graph, inside: Inside) -> None:
    """All neighbours of all nodes, if they are too many to be learned.

    Args:
        inside: enters the network namespace of a node.
    """
    neighbours = _neighbours(graph)
    if sum(map(len, neighbours.values())) <= MOST_LEARNED:
        return
    ethernet: dict[End, bytes] = {}
    for end in neighbours:
        with inside(end.node) as ip:
            (interface,) = ip.get_links(socket.if_nametoindex(end.interface))
            ethernet[end] = bytes.fromhex(interface.get_attr("IFLA_ADDRESS").replace(":", ""))
    for end, others in neighbours.items():
        if others:
            with inside(end.node):
                _tell_kernel(end, {other.ip: ethernet[other] for other in others})


def _tell_kernel(end: End, entries: dict[str, bytes]) -> None:
    index = socket.if_nametoindex(end.interface)
    flags = [_REQUEST | _CREATE | _REPLACE] * len(entries)
    flags[-1] |= _ACKNOWLEDGE
    messages = [
        _message(index, address, ethernet, flag)
        for (address, ethernet), flag in zip(entries.items(), flags, strict=True)
    ]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(b"".join(messages))
        # The first error, or else the acknowledgement of the last entry.
        (number,) = _ERROR.unpack_from(kernel.recv(1 << 16), _HEADER.size)
    if number:
        raise LabError(f"{end} cannot have permanent neighbours: {os.strerror(-number)}")


def _message(index: int, address: str, ethernet: bytes, flags: int) -> bytes:
    body = _NEIGHBOUR.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
    body += _attribute(_IP_ADDRESS, socket.inet_aton(address))
    body += _attribute(_ETHERNET_ADDRESS, ethernet)
    return _HEADER.pack(_HEADER.size + len(body), _NEW_NEIGHBOUR, flags, 0, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    padding = bytes(-len(value) % 4)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + padding


def _neighbours(graph: nx.Graph) -> dict[End, list[End]]:
    return {
        end: [other for other in segment if other.node != end.node]
        for segment in segments(graph)
        for end in segment
    }
