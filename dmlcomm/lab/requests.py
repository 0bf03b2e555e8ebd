"""Answers requests on a Unix socket: the holder of a lab does, and the process of a switch."""

import socket
from collections.abc import Callable, Collection
from selectors import EVENT_READ, BaseSelector
from typing import Any

from dmlcomm.lab import wire
from dmlcomm.lab.wire import Message, Reader

# A message, and the descriptors that go with it.
Answer = tuple[Message, tuple[int, ...]]


def _ignore(_: socket.socket) -> None:
    pass


class RequestServer:
    """Answers one request after the other, in the loop of its owner: each key of the selector has a
    function as its data, which the owner calls with the key's file object.

    Args:
        selector: of the owner.
        listener: bound. It listens from now on, and belongs to the server.
        users: ids of the users that may ask; connections of others are closed.
        answer: of the request that has come on a connection.
        ended: called when a connection has ended.
    """

    def __init__(
        self,
        selector: BaseSelector,
        listener: socket.socket,
        users: Collection[int],
        answer: Callable[[socket.socket, Message], Answer],
        ended: Callable[[socket.socket], None] = _ignore,
    ) -> None:
        self._selector = selector
        self._listener = listener
        self._users = users
        self._answer = answer
        self._ended = ended
        self._readers: dict[socket.socket, Reader] = {}
        listener.listen()
        selector.register(listener, EVENT_READ, self._accept)

    def close(self) -> None:
        """Nobody else can connect, and another may listen at the same address."""
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self, _: Any) -> None:
        connection, _ = self._listener.accept()
        # Ids arrive as they look in this process' user namespace.
        if wire.credentials(connection).uid not in self._users:
            connection.close()
            return
        connection.settimeout(wire.ANSWER_TIMEOUT_S)
        self._readers[connection] = Reader(connection)
        self._selector.register(connection, EVENT_READ, self._read)

    def _read(self, connection: socket.socket) -> None:
        reader = self._readers[connection]
        try:
            is_open = reader.receive()
            while (request := reader.line()) is not None:
                wire.send(connection, *self._answer(connection, request))
        except (OSError, ValueError, TypeError):  # the last two: it is no message
            is_open = False
        if not is_open:
            self._selector.unregister(connection)
            del self._readers[connection]
            connection.close()
            self._ended(connection)
