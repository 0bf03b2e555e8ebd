"""What TCP gives without anything on top: the bound of the parameter server on loopback.

Two processes, one connection, the kernel's default congestion control; whole buffers are handed to
the kernel, and received into one that exists.
"""

import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection

# Larger ones leave the cache, smaller ones cost more calls.
CHUNK_BYTES = 1 << 20
BUFFER_BYTES = 4 << 20


def stream_seconds(num_bytes: int, repeats: int) -> float:
    """Median time to send ``num_bytes`` one way and hear that all are there."""
    return _with_peer(_sink, (num_bytes, repeats), lambda s: _send_all(s, num_bytes), repeats)


def ping_pong_seconds(num_bytes: int, repeats: int) -> float:
    """Median time of a message of ``num_bytes`` and an answer of the same size."""
    memory = bytearray(num_bytes)

    def once(connection: socket.socket) -> None:
        connection.sendall(memory)
        receive(connection, memoryview(memory))

    return _with_peer(_echo, (num_bytes, repeats), once, repeats)


def _with_peer(body, arguments: tuple[int, int], once, repeats: int) -> float:
    """Runs ``body`` in another process, and ``once`` on a connection to it, ``repeats`` times."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    peer = context.Process(target=_listen, args=(there, body, arguments))
    peer.start()
    try:
        with socket.socket() as connection:
            _tune(connection)
            connection.connect(("127.0.0.1", here.recv()))
            times = []
            for _ in range(repeats):
                began = time.perf_counter()
                once(connection)
                times.append(time.perf_counter() - began)
    finally:
        peer.join(10)
        peer.kill()
    return statistics.median(times)


def _listen(report: Connection, body, arguments: tuple[int, int]) -> None:
    with socket.socket() as listener:
        _tune(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        report.send(listener.getsockname()[1])
        connection, _ = listener.accept()
    with connection:
        body(connection, *arguments)


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send_all(connection: socket.socket, num_bytes: int) -> None:
    memory = memoryview(bytes(CHUNK_BYTES))
    for begin in range(0, num_bytes, CHUNK_BYTES):
        connection.sendall(memory[: min(CHUNK_BYTES, num_bytes - begin)])
    connection.recv(1)


def _sink(connection: socket.socket, num_bytes: int, repeats: int) -> None:
    memory = memoryview(bytearray(CHUNK_BYTES))
    for _ in range(repeats):
        for begin in range(0, num_bytes, CHUNK_BYTES):
            receive(connection, memory[: min(CHUNK_BYTES, num_bytes - begin)])
        connection.sendall(b"!")


def _echo(connection: socket.socket, num_bytes: int, repeats: int) -> None:
    memory = bytearray(num_bytes)
    for _ in range(repeats):
        receive(connection, memoryview(memory))
        connection.sendall(memory)


def receive(connection: socket.socket, memory: memoryview) -> None:
    """Fills ``memory``. Raises ConnectionError if the other side ends before."""
    while memory:
        got = connection.recv_into(memory)
        if got == 0:
            raise ConnectionError("the other side has ended")
        memory = memory[got:]
