"""Plain TCP with marks, between the hosts of a lab."""

import json
import selectors
import socket
import sys

from dmlcomm.prio.switch.marks import OPTION, OPTION_BYTES, dscp_of

PORT = 5000
CHUNK = 1 << 16
STARTED_BYTES = 256 * 1024
TIMEOUT_S = 20


def mark_socket(connection: socket.socket, ticket: int | None, mark: str) -> None:
    if ticket is None:
        return
    if mark == "dscp":
        connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp_of(ticket) << 2)
    else:
        option = bytes([OPTION, OPTION_BYTES, ticket])
        connection.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, option)


def send(address: str, ticket: int | None, num_bytes: int, mark: str) -> None:
    """Sends, and returns when the other end has all."""
    with socket.create_connection((address, PORT), timeout=TIMEOUT_S) as connection:
        mark_socket(connection, ticket, mark)
        data = bytes(CHUNK)
        left = num_bytes
        while left > 0:
            left -= connection.send(data[: min(left, CHUNK)])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def send_frames(interface: str, frame: str, count: int) -> None:
    """Sends an Ethernet frame, given in hexadecimal digits, several times."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
        for _ in range(count):
            wire.sendto(bytes.fromhex(frame), (interface, 0))


def receive(num_connections: int) -> None:
    """Prints a line when it listens, when a connection has begun to flow, and when one has ended.

    The latter says how many bytes each connection has brought in the time of that one.
    """
    with socket.create_server(("", PORT)) as listener, selectors.DefaultSelector() as selector:
        say({"event": "listens"})
        counts: dict[socket.socket, int] = {}
        at_begin: dict[socket.socket, list[int]] = {}
        order: list[socket.socket] = []
        selector.register(listener, selectors.EVENT_READ)
        ended = 0
        while ended < num_connections:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                sys.exit(f"nothing came for {TIMEOUT_S} s: {ended} of {num_connections} have ended")
            for key, _ in ready:
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    selector.register(connection, selectors.EVENT_READ)
                    order.append(connection)
                    counts[connection] = 0
                    continue
                connection = key.fileobj
                got = len(connection.recv(CHUNK))
                if got == 0:
                    selector.unregister(connection)
                    ended += 1
                    begins = zip(order, at_begin[connection], strict=False)  # later ones have none
                    during = [counts[c] - begin for c, begin in begins]
                    say({"event": "ended", "number": order.index(connection), "bytes": during})
                    connection.close()
                    continue
                if counts[connection] == 0:
                    at_begin[connection] = [counts[c] for c in order]
                before = counts[connection]
                counts[connection] += got
                if before < STARTED_BYTES <= counts[connection]:
                    say({"event": "flows", "number": order.index(connection)})


def say(report: dict) -> None:
    print(json.dumps(report), flush=True)
