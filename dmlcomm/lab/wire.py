"""How a lab is found and spoken to: an abstract Unix socket, and lines of JSON.

The name of the socket holds the user's id and the lab's name. It lives in no file system, is unique
within a network namespace, is listed in /proc/net/unix, and vanishes with the holder of the lab. So
a lab has no file that could be left behind. Both sides check that the other belongs to the same
user.

A request is one line, {"op": ..., ...}; its answer is one line, {"error": text} on failure, with
file descriptors where the operation hands out namespaces.
"""

import json
import os
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmlcomm.errors import LabError

Message = dict[str, Any]

# Requests are answered at once, but for those that build or change many links.
ANSWER_TIMEOUT_S = 60.0
MAX_DESCRIPTORS = 16
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}"


@dataclass(frozen=True)
class Credentials:
    """The process at the other end of a Unix socket."""

    pid: int
    uid: int


def address(name: str) -> str:
    """The abstract address of this user's lab ``name``. Raises LabError for an impossible name."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise LabError(f'"{name}" cannot name a lab: letters, digits, "_", "." and "-", at most 41')
    return f"{_prefix()}{name}"


def names_in_use() -> list[str]:
    """Names of this user's labs that can be seen from here."""
    mark = "@" + _prefix()[1:]
    paths = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    return sorted({path.removeprefix(mark) for path in paths if path.startswith(mark)})


def _prefix() -> str:
    return f"\0dmlcomm-lab/{os.geteuid()}/"


def credentials(connection: socket.socket) -> Credentials:
    """Of the process that connected, or that listens."""
    size = struct.calcsize("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", raw)
    return Credentials(pid, uid)


def send(connection: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """One line; the descriptors travel with its first byte."""
    data = json.dumps(message).encode() + b"\n"
    sent = socket.send_fds(connection, [data], list(descriptors)) if descriptors else 0
    connection.sendall(data[sent:])


class Reader:
    """Takes lines and descriptors from a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._bytes = b""
        self.descriptors: list[int] = []

    def receive(self) -> bool:
        """Takes what has arrived; False when the other side has closed. Raises OSError."""
        data, descriptors, _, _ = socket.recv_fds(self._connection, 1 << 16, MAX_DESCRIPTORS)
        self.descriptors += descriptors
        self._bytes += data
        return bool(data)

    def line(self) -> Message | None:
        head, newline, rest = self._bytes.partition(b"\n")
        if not newline:
            return None
        self._bytes = rest
        return dict(json.loads(head))

    def wait_for_line(self) -> Message | None:
        """The next message; None when the other side closes instead. Raises OSError."""
        while (message := self.line()) is None:
            if not self.receive():
                return None
        return message
