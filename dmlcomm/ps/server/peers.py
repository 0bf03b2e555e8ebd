"""Calls of a server to the other servers of its job."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps._proto import dmlcomm_ps_pb2_grpc as pb_grpc
from dmlcomm.ps.protocol import PROTOCOL_KEY, PROTOCOL_VERSION, TOKEN_KEY
from dmlcomm.ps.tls import Tls, channel_credentials

# A server that lives answers in less, also while it is busy.
ANSWER_TIMEOUT_S = 3.0
# Pieces of models are larger than what gRPC takes of its own accord.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1),)

# call(name, request, timeout_s): the answer. Raises grpc.RpcError.
Call = Callable[[str, Any, float], Any]


class PeersClosed(grpc.RpcError):  # type: ignore[misc]
    """This server is closing, and calls no other."""

    def details(self) -> str:
        return "this server is closing"


def text_of(error: Exception) -> str:
    """In a line, also of a call."""
    return str(error.details() if hasattr(error, "details") else error)


class Peers:
    """The servers, by the addresses that workers have for them. Any thread may call."""

    def __init__(self, token: str, tls: Tls | None, addresses: Sequence[str]) -> None:
        self._metadata = ((PROTOCOL_KEY, PROTOCOL_VERSION), (TOKEN_KEY, token.encode()))
        self._tls = tls
        self.addresses = tuple(addresses)
        self._lock = threading.Lock()
        self._channels: set[grpc.Channel] = set()
        self._is_closed = False

    def close(self) -> None:
        """Calls that are under way raise PeersClosed, and so do later ones."""
        with self._lock:
            self._is_closed = True
            for channel in self._channels:
                channel.close()

    def learn(self, addresses: Sequence[str]) -> None:
        """Of all servers; the first worker tells, where this server was not given them."""
        self.addresses = self.addresses or tuple(addresses)

    @contextlib.contextmanager
    def calling(self, server: int) -> Iterator[Call]:
        """Calls over a new connection: an old one may wait before it tries again."""
        with self._connected(self.addresses[server]) as channel:
            stub = pb_grpc.ParameterServerStub(channel)

            def call(name: str, request: Any, timeout_s: float) -> Any:
                try:
                    return getattr(stub, name)(request, timeout=timeout_s, metadata=self._metadata)
                except (grpc.RpcError, ValueError) as error:  # ValueError: of a closed channel
                    if self._is_closed:
                        raise PeersClosed from error
                    raise

            yield call

    @contextlib.contextmanager
    def _connected(self, address: str) -> Iterator[grpc.Channel]:
        if self._tls is None:
            channel = grpc.insecure_channel(address, CHANNEL_OPTIONS)
        else:
            channel = grpc.secure_channel(address, channel_credentials(self._tls), CHANNEL_OPTIONS)
        with channel:
            with self._lock:
                if self._is_closed:
                    raise PeersClosed
                self._channels.add(channel)
            try:
                yield channel
            finally:
                with self._lock:
                    self._channels.discard(channel)

    def health(self, server: int) -> Any:
        """The server's own report. Raises grpc.RpcError."""
        with self.calling(server) as call:
            return call("Health", pb.HealthRequest(), ANSWER_TIMEOUT_S)
