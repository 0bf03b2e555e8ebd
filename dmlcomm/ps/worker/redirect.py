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


def redirected(
    proxy: str, servers: Sequence[str], token: str, uses_tls: bool, timeout_s: float
) -> list[str]:
    """The addresses to connect to: those of the proxy, or `servers` themselves.

    Args:
        proxy: "auto", "none" or the path of a proxy's socket. "auto" takes a proxy that is there
            and carries the job, and else none.

    Raises:
        PsConnectionError: nothing answers at the path. PsRefusedError: the proxy does not carry
            this job; the text says why.
    """
    if proxy == NONE:
        return list(servers)
    if proxy != AUTO:
        return _attach(proxy, servers, token, uses_tls, timeout_s)
    for path in default_sockets():
        if not os.path.exists(path):
            continue
        try:
            return _attach(path, servers, token, uses_tls, timeout_s)
        except errors.PsError as error:
            get_logger().info("without a proxy: %s", error)
    return list(servers)


def _attach(
    path: str, servers: Sequence[str], token: str, uses_tls: bool, timeout_s: float
) -> list[str]:
    if uses_tls:
        raise errors.PsRefusedError(
            f"the proxy at {path} carries no job with TLS; set DMLCOMM_PROXY=none for this job"
        )
    answer = ask(path, {"servers": list(servers), "token": token}, timeout_s)
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
