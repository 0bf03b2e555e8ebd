"""The traffic of a parameter server by plain TCP: ``plain_tcp.py BYTES`` sends back what it gets.

Each connection is an asynchronous worker, which pushes so many bytes, and then pulls as many: the
traffic of the testbed's job. Where both gain the same by a steered circuit, what is missing to the
rates of links is missing to TCP. Prints a line when it listens.
"""

import contextlib
import socket
import sys
import threading

from benchmarks.ps.plain_tcp import receive

PORT = 7001


def exchange(connection: socket.socket, memory: memoryview) -> None:
    """A step of a worker."""
    connection.sendall(memory)
    receive(connection, memory)


def _serve(connection: socket.socket, num_bytes: int) -> None:
    memory = memoryview(bytearray(num_bytes))
    with connection, contextlib.suppress(ConnectionError):
        while True:
            receive(connection, memory)
            connection.sendall(memory)


def main() -> None:
    with socket.create_server(("", PORT)) as listener:
        print("listens", flush=True)
        while True:
            connection, _ = listener.accept()
            arguments = connection, int(sys.argv[1])
            threading.Thread(target=_serve, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main()
