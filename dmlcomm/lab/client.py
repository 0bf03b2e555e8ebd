"""A connection to the holder of a running lab."""

import os
import socket
from collections.abc import Mapping
from typing import Any

import networkx as nx

from dmlcomm.errors import LabError
from dmlcomm.lab import wire
from dmlcomm.lab.processes import kill
from dmlcomm.lab.wire import Message, Reader
from dmlcomm.topology import graph as topology

# The holder answers nobody else meanwhile.
MOST_DARK_S = 10.0


class Client:
    """Speaks to the lab ``name`` of this user; a context manager. Raises LabError without one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(wire.ANSWER_TIMEOUT_S)
        try:
            self._socket.connect(wire.address(name))
        except ConnectionRefusedError as error:
            self._socket.close()
            state = "is still being built" if name in wire.names_in_use() else "does not exist"
            known = ", ".join(wire.names_in_use()) or "none"
            raise LabError(f'the lab "{name}" {state} (labs of this user: {known})') from error
        except BaseException:
            self._socket.close()
            raise
        self.holder = wire.credentials(self._socket)
        if self.holder.uid != os.geteuid():
            self._socket.close()
            raise LabError(f'the lab "{name}" is held by user {self.holder.uid}: not used')
        self._reader = Reader(self._socket)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; a run that it has begun is ended by the holder."""
        self._socket.close()

    def fileno(self) -> int:
        """Readable when the lab is gone, as nothing comes unasked."""
        return self._socket.fileno()

    def ask(self, op: str, **arguments: Any) -> Message:
        """The answer to one request. Raises LabError with the holder's reason."""
        try:
            wire.send(self._socket, {"op": op, **arguments})
            answer = self._reader.wait_for_line()
        except TimeoutError as error:
            raise LabError(f'the lab "{self.name}" did not answer "{op}" in time') from error
        except OSError:
            answer = None
        if answer is None:
            raise LabError(f'the lab "{self.name}" ended while it was asked for "{op}"')
        if "error" in answer:
            raise LabError(answer["error"])
        return answer

    def graph(self) -> nx.Graph:
        return topology.from_json(self.ask("describe")["graph"])

    def descriptors(self, op: str, **arguments: Any) -> tuple[Message, list[int]]:
        """As `ask`, with the descriptors that came along; the caller closes them."""
        answer = self.ask(op, **arguments)
        taken, self._reader.descriptors = self._reader.descriptors, []
        return answer, taken

    def move(self, moves: Mapping[str, str], dark_s: float) -> None:
        """See `Lab.circuit`."""
        if not 0 <= dark_s <= MOST_DARK_S:
            raise LabError(f"circuits may be dark for 0 to {MOST_DARK_S:g} s, not {dark_s:g} s")
        self.ask("move", moves=list(moves.items()), dark_s=dark_s)

    def end_lab(self) -> None:
        """Takes the lab down; returns when its processes are gone. Raises LabError.

        The kernel does the work: with the first process of a PID namespace all others are killed,
        and with the last descriptor the network goes. So a holder that is stopped or hangs is no
        obstacle.
        """
        if not kill(self.holder.pid, wire.ANSWER_TIMEOUT_S):
            raise LabError(
                f'the lab "{self.name}" (process {self.holder.pid}) was killed and has not ended '
                f"after {wire.ANSWER_TIMEOUT_S:g} s: a process in it may hang in the kernel"
            )
