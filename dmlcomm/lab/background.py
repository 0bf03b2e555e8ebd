"""Background traffic: every host sends datagrams at a rate that does not give way, as far as the
network lets them pass.

All flows are one process, which hands the kernel several datagrams at a time (UDP_SEGMENT). Nobody
reads them: the kernel throws away what does not fit into the receiver's buffer.
"""

import contextlib
import select
import socket
import time
from collections.abc import Callable

from dmlcomm.errors import LabError
from dmlcomm.lab import load
from dmlcomm.lab.client import Client
from dmlcomm.lab.load import Flow
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind

# Of linux/in.h and linux/udp.h.
_IP_MTU = 14
_UDP_SEGMENT = 103

MOST_PACKET_BYTES = 1500
# Ethernet's header, which a rate counts; those of IP and UDP.
_ETHERNET_BYTES, _HEADERS_BYTES = 14, 28
_LEAST_BUFFER = 1

TICK_S = 0.002
MOST_AT_ONCE = 16  # datagrams, of what is due
# What this process was too late to send is not sent later, beyond so much.
MOST_BEHIND_S = 0.02


def run(client: Client, interface: str, rate_bps: int, started: Callable[[int], None]) -> None:
    """Every host sends at ``rate_bps`` from ``interface``, to the next one at the same switch.

    Returns when the lab ends; ``started`` is told the number of hosts. This process enters the lab
    for good. Raises LabError.
    """
    graph = client.graph()
    is_host = {name: data["kind"] == NodeKind.HOST for name, data in graph.nodes(data=True)}
    wanted = [
        flow
        for flow in load.flows(graph)
        if flow.source.interface == interface and is_host[flow.source.node]
    ]
    if not wanted:
        some = ", ".join(topology.interfaces(graph, topology.hosts(graph)[0]))
        raise LabError(
            f'no host can send to another one from "{interface}": expected an interface that is '
            f"up (a host has {some}), with a second host of the same rate at its switch"
        )
    load.enter_lab(client)
    with contextlib.ExitStack() as stack:
        senders = [_sender(client, flow, stack) for flow in wanted]
        started(len(senders))
        _send_until_the_lab_ends(client, senders, rate_bps / 8)


def _sender(client: Client, flow: Flow, stack: contextlib.ExitStack) -> tuple[socket.socket, int]:
    """A connected socket, and the bytes of its datagrams."""
    load.enter_node(client, flow.target.node)
    receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LEAST_BUFFER)
    receiver.bind((flow.target.ip, 0))
    load.enter_node(client, flow.source.node)
    sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.bind((flow.source.ip, 0))
    sender.connect(receiver.getsockname())
    sender.setblocking(False)
    mtu = sender.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    size = min(mtu, MOST_PACKET_BYTES) - _HEADERS_BYTES
    sender.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
    return sender, size


def _send_until_the_lab_ends(
    client: Client, senders: list[tuple[socket.socket, int]], bytes_per_s: float
) -> None:
    data = bytes(MOST_AT_ONCE * MOST_PACKET_BYTES)
    due = dict.fromkeys(range(len(senders)), 0.0)  # bytes of frames, by sender
    last = time.monotonic()
    while not select.select([client], [], [], TICK_S)[0]:
        now = time.monotonic()
        for number, (sender, size) in enumerate(senders):
            frame = size + _HEADERS_BYTES + _ETHERNET_BYTES
            late = due[number] + (now - last) * bytes_per_s
            due[number] = min(late, max(MOST_BEHIND_S * bytes_per_s, frame))
            while (count := min(int(due[number] // frame), MOST_AT_ONCE)) > 0:
                due[number] -= count * frame
                # Where the interface's queue is full, or its cable is pulled, they are lost.
                with contextlib.suppress(OSError):
                    sender.send(memoryview(data)[: count * size])
        last = now
