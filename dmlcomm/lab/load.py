"""Loads every link in both directions with TCP, at little cost: one process for all connections.

The sender hands the kernel pages of one file in memory (sendfile), and the receiver throws away
what arrives without copying it (MSG_TRUNC), so that the CPU's time goes into what is to be
measured.
"""

import contextlib
import mmap
import os
import selectors
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from dmlcomm.lab import namespaces as ns
from dmlcomm.lab.client import Client
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import End, NodeKind

CHUNK_BYTES = 1 << 20

# Fewer wake-ups: a receiver is called when that much has arrived.
WAKE_BYTES = 128 * 1024

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Flow:
    """One connection; data goes from ``source`` to ``target``, on a direct path."""

    source: End
    target: End


def flows(graph: nx.Graph) -> list[Flow]:
    """One flow in each direction of each link that is up, if there is somebody to send to.

    The hosts at a switch form a ring, so each sends to one and receives from one. Where rates
    differ, those of one rate form a ring, since a faster link could not be filled through a slower
    one; a link that is alone with its rates is left out. A link between two addresses carries a
    flow each way.
    """
    found = []
    for switch in topology.nodes_of_kind(graph, NodeKind.SWITCH):
        rings: dict[tuple[int | None, int | None], list[End]] = {}
        for link in topology.links_of(graph, switch):
            if link.up and link.other(switch).address:
                rates = link.shape.rate_bps, link.shape.back.rate_bps
                rings.setdefault(rates, []).append(link.other(switch))
        for ends in rings.values():
            if len(ends) > 1:
                found += [Flow(ends[i - 1], end) for i, end in enumerate(ends)]
    for link in topology.links(graph):
        if link.up and all(end.address for end in link.ends):
            found += [Flow(link.a, link.b), Flow(link.b, link.a)]
    return found


class Received:
    """Bytes that have arrived, by number of the flow, in memory shared with the child."""

    def __init__(self, num_flows: int) -> None:
        self._bytes = memoryview(mmap.mmap(-1, 8 * num_flows)).cast("Q")

    def add(self, flow: int, count: int) -> None:
        self._bytes[flow] += count

    def read(self) -> list[int]:
        return self._bytes.tolist()


@contextlib.contextmanager
def running(client: Client, wanted: list[Flow]) -> Iterator[Received]:
    """All flows run while the block does. This process enters the lab for good.

    Raises LabError or OSError when a connection cannot be made.
    """
    enter_lab(client)
    pairs = _connect(client, wanted)
    received = Received(len(wanted))
    child = os.fork()
    if child == 0:
        _pump_until_killed(pairs, received)
    try:
        for pair in pairs:
            for connection in pair:
                connection.close()
        yield received
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def enter_lab(client: Client) -> None:
    """For good: the network namespaces of the lab's nodes can be entered then."""
    answer, descriptors = client.descriptors("enter")
    if "user" in answer["kinds"]:
        with contextlib.suppress(OSError):  # this process is inside already
            ns.setns(descriptors[0], ns.CLONE_NEWUSER)
    for descriptor in descriptors:
        os.close(descriptor)


def enter_node(client: Client, node: str) -> None:
    """This process is in the network namespace of ``node``."""
    _, (net, uts) = client.descriptors("namespaces", node=node)
    ns.setns(net, ns.CLONE_NEWNET)
    os.close(net)
    os.close(uts)


def _connect(client: Client, wanted: list[Flow]) -> list[tuple[socket.socket, socket.socket]]:
    """A connected pair, sender and receiver, per flow."""
    pairs = []
    for flow in wanted:
        enter_node(client, flow.target.node)
        with socket.create_server((flow.target.ip, 0)) as listener:
            enter_node(client, flow.source.node)
            sender = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sender.settimeout(CONNECT_TIMEOUT_S)
            sender.bind((flow.source.ip, 0))
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAKE_BYTES)
        sender.setblocking(False)
        receiver.setblocking(False)
        pairs.append((sender, receiver))
    return pairs


def _pump_until_killed(
    pairs: list[tuple[socket.socket, socket.socket]], received: Received
) -> None:
    """Main of the child: sends and receives as fast as the links allow."""
    ns.die_with_parent()
    data = os.memfd_create("load")
    os.truncate(data, CHUNK_BYTES)
    waste = bytearray(CHUNK_BYTES)
    selector = selectors.DefaultSelector()
    for flow, (sender, receiver) in enumerate(pairs):
        selector.register(sender, selectors.EVENT_WRITE)
        selector.register(receiver, selectors.EVENT_READ, flow)
    while True:
        for key, events in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            with contextlib.suppress(BlockingIOError):
                if events & selectors.EVENT_WRITE:
                    os.sendfile(connection.fileno(), data, 0, CHUNK_BYTES)
                else:
                    count = connection.recv_into(waste, CHUNK_BYTES, socket.MSG_TRUNC)
                    received.add(key.data, count)
