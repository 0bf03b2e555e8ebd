"""TCP connections of other processes, which are reset as their kernel does."""

import contextlib
import ctypes
import os
import random
import socket
from collections.abc import Container, Iterator
from pathlib import Path

_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


def reset_connections(pid: int, rng: random.Random, addresses: Container[str] | None = None) -> int:
    """Resets one TCP connection of the process, or half of them; how many.

    ``addresses``: only of those that begin at one of these.
    """
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(each) for each in _connections(pid)]
        if addresses is not None:
            found = [each for each in found if each.getsockname()[0] in addresses]
        chosen = rng.sample(found, rng.choice((1, (len(found) + 1) // 2))) if found else []
        for each in chosen:
            # To connect to no address is to reset, for this process and for its peer.
            _libc.connect(each.fileno(), bytes(16), 16)
        return len(chosen)


def _connections(pid: int) -> Iterator[socket.socket]:
    """Its TCP connections, which are open here as well."""
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(entry).startswith("socket:"):
                    descriptor = _libc.syscall(_PIDFD_GETFD, process, int(entry.name), 0)
                    if descriptor >= 0:
                        yield from _if_connected(socket.socket(fileno=descriptor))
    finally:
        os.close(process)


def _if_connected(found: socket.socket) -> Iterator[socket.socket]:
    if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
        with contextlib.suppress(OSError):
            found.getpeername()
            yield found
            return
    found.close()
