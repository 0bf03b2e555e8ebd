"""A process that runs Python functions on the nodes of a lab, each in a child of its own.

The command line's way into a lab starts two Python programs per call, which is most of the time of
a test that looks at a switch again and again. Here a child is a fork of a process that has its
modules.

This file is the helper for tests, and the process.
"""

import contextlib
import importlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from dmlcomm.lab.client import Client
from dmlcomm.lab.entry import Entry

TIMEOUT_S = 60


class Agent:
    """Of one lab; `modules` are imported once, also those of this folder."""

    def __init__(self, lab: str, modules: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dmlcomm-test-")
        self._path = f"{self._folder.name}/socket"
        command = [sys.executable, __file__, lab, self._path, *modules]
        self._numbers = itertools.count()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the agent has said why it ended"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()

    @contextlib.contextmanager
    def started(self, node: str, function: str, *arguments: Any) -> Iterator[TextIO]:
        """What ``function``, "module:name", prints on ``node``, as it comes.

        The child that runs it is killed afterwards, but not what it has started.
        """
        number = next(self._numbers)
        request = {"node": node, "function": function, "arguments": arguments}
        try:
            with self._asked({"number": number} | request) as output:
                yield output
        finally:
            with self._asked({"kill": number}) as output:
                output.read()

    @contextlib.contextmanager
    def _asked(self, request: dict[str, Any]) -> Iterator[TextIO]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(self._path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("r") as output:
                yield output

    def call(self, node: str, function: str, *arguments: Any) -> str:
        """All that the function prints, when it and the processes that have its output are done."""
        with self.started(node, function, *arguments) as output:
            return output.read()

    def main(self, node: str, module: str, *arguments: str) -> str:
        """What ``python -m module`` prints."""
        return self.call(node, "__main__:run_main", module, arguments)

    def run(self, node: str, *words: str) -> str:
        """What a program prints."""
        result = json.loads(self.call(node, "__main__:run_program", words))
        assert result["code"] == 0, result["text"]
        return str(result["text"])


def run_main(module: str, arguments: Sequence[str]) -> None:
    sys.argv[1:] = arguments
    importlib.import_module(module).main()


def run_program(words: Sequence[str]) -> None:
    """Prints exit code and output, as JSON."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(json.dumps({"code": done.returncode, "text": done.stdout}), flush=True)


def _serve(lab: str, path: str, modules: Sequence[str]) -> None:
    entry = Entry(Client(lab))
    for module in modules:
        importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    children: dict[int, int] = {}  # their descriptors
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("r") as lines:
            request = json.loads(lines.readline())
            if "kill" in request:
                _kill(children.pop(request["kill"]))
                continue
            child = entry.fork(request["node"])
            if child == 0:
                listener.close()
                _carry_out(connection, request)
            children[request["number"]] = os.pidfd_open(child)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child, signal.SIGKILL)
    os.waitid(os.P_PIDFD, child, os.WEXITED)
    os.close(child)


def _carry_out(connection: socket.socket, request: dict[str, Any]) -> None:
    """In a child: all that holds the connection is what the function prints to."""
    os.dup2(connection.fileno(), 1)
    os.close(connection.detach())
    module, name = request["function"].split(":")
    code = 1
    try:
        getattr(importlib.import_module(module), name)(*request["arguments"])
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3:])
