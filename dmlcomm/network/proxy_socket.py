"""The Unix socket of a host's proxy: where it is, and how to ask there.

A request is one line of JSON, and so is its answer, {...} or {"error": ...}.
"""

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from dmlcomm import errors

# DMLCOMM_PROXY is one of these words, or a path.
AUTO = "auto"
NONE = "none"

# Where a proxy listens unless it is told otherwise: one that root has started, one of the user.
SYSTEM_SOCKET = "/run/dmlcomm/proxy.sock"
USER_SOCKET = "/tmp/dmlcomm-{uid}/proxy.sock"

# An answer is a list of addresses, or the state of all jobs.
MAX_LINE_BYTES = 16 << 20


def default_sockets() -> list[str]:
    """Paths at which `auto` looks for a proxy, in this order."""
    return [SYSTEM_SOCKET, USER_SOCKET.format(uid=os.getuid())]


def paths(setting: str) -> list[str]:
    """Where the proxy of DMLCOMM_PROXY=`setting` may listen."""
    if setting == NONE:
        return []
    return default_sockets() if setting == AUTO else [setting]


def connect(path: str, timeout_s: float) -> socket.socket:
    """A connection to the proxy at `path`. Raises OSError, PsRefusedError."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
        # Another user who may write to the folder could listen there, and get the token.
        if peer_uid(connection) not in (0, os.getuid()):
            raise errors.PsRefusedError(
                f"the proxy at {path} belongs to user {peer_uid(connection)}; expected this "
                f"user, {os.getuid()}, or root: set DMLCOMM_PROXY to another path or none"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def exchange(
    connection: socket.socket,
    request: dict[str, Any],
    descriptors: Sequence[int] = (),
    most_bytes: int = MAX_LINE_BYTES,
) -> dict[str, Any]:
    """The answer to `request`, with which descriptors go. Raises OSError, ValueError."""
    line = json.dumps(request).encode() + b"\n"
    if descriptors:
        sent = socket.send_fds(connection, [line], list(descriptors))
        line = line[sent:]
    # A proxy that refuses has closed its end by now: even an empty write would fail then, and what
    # it has said would not be read.
    if line:
        connection.sendall(line)
    return read_message(connection, most_bytes)


def ask(path: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The answer of the proxy at `path`. Raises PsConnectionError, PsRefusedError."""
    try:
        with connect(path, timeout_s) as connection:
            answer = exchange(connection, request)
    except (OSError, ValueError) as error:
        raise errors.PsConnectionError(
            f"no proxy answers at {path}: {error}; start one (dmlcomm proxy serve --socket "
            f"{path}), or set DMLCOMM_PROXY=none"
        ) from error
    if "error" in answer:
        raise errors.PsRefusedError(f"the proxy at {path}: {answer['error']}")
    return answer


def peer_uid(connection: socket.socket) -> int:
    """The user of the process at the other end of a Unix socket."""
    return peer_of(connection)[1]


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end; process 0 is one that cannot be seen from here."""
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = struct.unpack("3i", peer)
    return int(process), int(user)


def read_message(connection: socket.socket, most_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """An object of JSON on a line. Raises OSError, and ValueError for anything else."""
    message = json.loads(read_line_after(connection, b"", most_bytes))
    if not isinstance(message, dict):
        raise ValueError(f"{type(message).__name__} came; expected an object of JSON")
    return message


def read_line_after(
    connection: socket.socket, line: bytes, most_bytes: int = MAX_LINE_BYTES
) -> bytes:
    """A line, of which `line` has been read. Raises ValueError if it has no end, or is too long.

    What follows the line stays in the socket: a proxy may speak twice, of the admission of a
    job and that it is preempted.
    """
    while not line.endswith(b"\n"):
        part = connection.recv(65536, socket.MSG_PEEK)
        part = connection.recv(part.find(b"\n") + 1 or len(part))
        line += part
        if not part or len(line) > most_bytes:
            raise ValueError(f"{len(line)} bytes came without the end of a line")
    return line
