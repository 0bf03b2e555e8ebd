"""Calls between controllers: a line of JSON each way, over a Unix socket of this machine."""

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from dmlcomm.errors import LabError
from dmlcomm.network import proxy_socket

# What a request is one line of, and how long the line may take.
REQUEST_TIMEOUT_S = 10.0
MOST_BYTES = 1 << 20

Message = dict[str, Any]


def ask(path: str, message: Message, deadline_s: float) -> Message:
    """The answer of the controller that listens at ``path``. Raises LabError.

    Args:
        deadline_s: by `time.monotonic`. The controller is told how much time it has.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            left_s = max(0.001, deadline_s - time.monotonic())
            connection.settimeout(left_s)
            connection.connect(path)
            message = message | {"timeout_s": left_s}
            answer = proxy_socket.exchange(connection, message, most_bytes=MOST_BYTES)
    except OSError as error:
        raise LabError(f"no controller answers at {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise LabError(f"what answers at {path} is no controller: {error}") from error
    if "error" in answer:
        raise LabError(str(answer["error"]))
    return answer


class Listener:
    """Answers calls, one after the other; a context manager, which removes its socket.

    Raises LabError if ``path`` cannot be listened at.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(path)
            os.chmod(path, 0o600)
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise LabError(f"{path} cannot be listened at: {error.strerror or error}") from error

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def serve(self, answer: Callable[[Message], Message]) -> None:
        """Without end. A LabError of ``answer`` is the answer, and so is what is no request."""
        while True:
            connection, _ = self._socket.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(REQUEST_TIMEOUT_S)
                try:
                    told = answer(proxy_socket.read_message(connection, MOST_BYTES))
                except (LabError, subprocess.TimeoutExpired) as error:
                    told = {"error": str(error)}
                except (KeyError, TypeError, ValueError) as error:
                    told = {"error": f"this is no request: {error!r}"}
                connection.sendall(json.dumps(told).encode() + b"\n")
