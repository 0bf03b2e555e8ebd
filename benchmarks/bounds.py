"""What the machine could do: the rate of one plain TCP stream over loopback."""

import os
import socket
import time

STREAM_BYTES = 1 << 30
CHUNK_BYTES = 4 << 20
STREAM_SECONDS = 0.4
TRIES = 3


def tcp_stream_bytes_per_s() -> float:
    """One connection, one process at each end, 4 MiB writes, the kernel's own buffer sizes.

    The best of a few short tries: what slows one is other load on the machine.
    """
    return max(_try_stream() for _ in range(TRIES))


def _try_stream() -> float:
    """Sends for STREAM_SECONDS, at most STREAM_BYTES; the receiver's last byte ends the time."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        _send_until_done(listener.getsockname())
    connection, _ = listener.accept()
    received = 0
    buffer = bytearray(CHUNK_BYTES)
    begin = end = time.perf_counter()
    while count := connection.recv_into(buffer):
        received += count
        end = time.perf_counter()
    connection.close()
    listener.close()
    os.waitpid(child, 0)
    return received / (end - begin)


def _send_until_done(address) -> None:
    """Main of the sending child. Leaves without the parent's exit handlers."""
    data = bytes(CHUNK_BYTES)
    connection = socket.create_connection(address)
    deadline = time.perf_counter() + STREAM_SECONDS
    sent = 0
    while sent < STREAM_BYTES and time.perf_counter() < deadline:
        connection.sendall(data)
        sent += CHUNK_BYTES
    connection.close()
    os._exit(0)
