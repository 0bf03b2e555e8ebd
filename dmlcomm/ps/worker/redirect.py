"""DMLCOMM_PROXY: whether a client talks to the servers or to the proxy of its host.

A proxy listens on a Unix socket. The client sends one line, {"servers": [...], "token": ...}, and
gets one, {"servers": [...]}: where the proxy stands in for these servers; or {"error": ...}.
"""

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from dmlcomm import errors
from dmlcomm.log import get_logger

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


class Route:
    """The way of one client: by the proxy of its host, or to the servers.

    Args:
        proxy: "auto", "none" or the path of a proxy's socket. "auto" takes a proxy that is there
            and carries the job, and else none.
        servers, token, uses_tls: as the client has them.
    """

    def __init__(self, proxy: str, servers: Sequence[str], token: str, uses_tls: bool) -> None:
        self.servers = list(servers)
        self._proxy = proxy
        self._token = token
        self._uses_tls = uses_tls

        # Whether there is a proxy that the client may come to or lose.
        self.may_change = proxy not in (AUTO, NONE)

    def first(self, timeout_s: float) -> tuple[list[str], bool]:
        """Addresses to connect to, and whether they are those of a proxy.

        Raises PsConnectionError: nothing answers at the path. PsRefusedError: the proxy does not
        carry this job; the text says why.
        """
        if self._proxy in (AUTO, NONE):
            return self.again(timeout_s)
        return self._attach(self._proxy, timeout_s), True

    def again(self, timeout_s: float) -> tuple[list[str], bool]:
        """The same, but without a proxy that answers the servers themselves."""
        for path in self._paths():
            if not os.path.exists(path):
                continue
            try:
                return self._attach(path, timeout_s), True
            except errors.PsError as error:
                get_logger().info("without a proxy: %s", error)
        return list(self.servers), False

    def has_proxy(self, timeout_s: float) -> bool:
        """Whether a proxy answers."""
        for path in self._paths():
            try:
                if os.path.exists(path):
                    ask(path, {"beat": True}, timeout_s)
                    return True
            except errors.PsError as error:
                get_logger().debug("no proxy to return to: %s", error)
        return False

    def _paths(self) -> list[str]:
        if self._proxy == NONE:
            return []
        return default_sockets() if self._proxy == AUTO else [self._proxy]

    def _attach(self, path: str, timeout_s: float) -> list[str]:
        if self._uses_tls:
            raise errors.PsRefusedError(
                f"the proxy at {path} carries no job with TLS; set DMLCOMM_PROXY=none for this job"
            )
        answer = ask(path, {"servers": self.servers, "token": self._token}, timeout_s)
        self.may_change = True
        return [str(address) for address in answer["servers"]]


def ask(path: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The answer of the proxy at `path`. Raises PsConnectionError, PsRefusedError."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            # Another user who may write to the folder could listen there, and get the token.
            if peer_uid(connection) not in (0, os.getuid()):
                raise errors.PsRefusedError(
                    f"the proxy at {path} belongs to user {peer_uid(connection)}; expected this "
                    f"user, {os.getuid()}, or root: set DMLCOMM_PROXY to another path or none"
                )
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(read_line(connection))
    except (OSError, ValueError) as error:
        raise errors.PsConnectionError(
            f"no proxy answers at {path}: {error}; start one (dmlcomm proxy serve --socket "
            f"{path}), or set DMLCOMM_PROXY=none"
        ) from error
    if "error" in answer:
        raise errors.PsRefusedError(f"the proxy at {path}: {answer['error']}")
    return dict(answer)


def peer_uid(connection: socket.socket) -> int:
    """The user of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", peer)[1])


def read_line(connection: socket.socket) -> bytes:
    """Up to the first newline. Raises ValueError if there is none, or the line is too long."""
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(65536)
        line += part
        if not part or len(line) > MAX_LINE_BYTES:
            raise ValueError(f"{len(line)} bytes came without the end of a line")
    return line
