"""The client's side of the control plane: calls to one server, with deadlines and clear errors."""

from typing import Any

import grpc

from dmlcomm import errors
from dmlcomm.ps._proto import dmlcomm_ps_pb2_grpc as pb_grpc
from dmlcomm.ps.protocol import CALL_TIMEOUT_S, PROTOCOL_KEY, PROTOCOL_VERSION, TOKEN_KEY
from dmlcomm.ps.tls import Tls, channel_credentials

# gRPC waits up to two minutes before it connects again; a restarted server is there sooner.
RECONNECT_MS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))

Code = grpc.StatusCode
_ERRORS: dict[Any, type[errors.PsError]] = {
    Code.UNAVAILABLE: errors.PsConnectionError,
    Code.CANCELLED: errors.PsConnectionError,  # the other side ends
    Code.ABORTED: errors.PsConnectionError,  # not now: try again
    Code.DEADLINE_EXCEEDED: errors.PsTimeoutError,
    Code.UNAUTHENTICATED: errors.PsRefusedError,
    Code.FAILED_PRECONDITION: errors.PsRefusedError,
    Code.ALREADY_EXISTS: errors.PsRefusedError,
    Code.INVALID_ARGUMENT: errors.PsModelError,
    Code.UNIMPLEMENTED: errors.PsRefusedError,
}


class UnknownSessionError(errors.PsError):
    """The server has forgotten this worker; it has to register again."""


class NumberTakenError(errors.PsRefusedError):
    """Another client has this worker's number; it may be one that has just died."""


class Control:
    """Calls to one server, with its token. Any thread may call."""

    def __init__(self, server: int, address: str, token: str, tls: Tls | None) -> None:
        self.server = server
        self.address = address
        self._metadata = ((PROTOCOL_KEY, PROTOCOL_VERSION), (TOKEN_KEY, token.encode()))
        if tls is None:
            self._channel = grpc.insecure_channel(address, RECONNECT_MS)
        else:
            self._channel = grpc.secure_channel(address, channel_credentials(tls), RECONNECT_MS)
        self._stub = pb_grpc.ParameterServerStub(self._channel)

    def call(
        self, name: str, request: Any, wait_s: float = 0.0, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """The answer, within `timeout_s` beside `wait_s`, which the server was asked to wait.

        Raises PsError.
        """
        method = getattr(self._stub, name)
        try:
            return method(request, timeout=timeout_s + wait_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._translate(name, error) from None
        except ValueError as error:  # another thread has closed the channel
            text = f"server {self.server} ({self.address}): {error}"
            raise errors.PsConnectionError(text) from None

    def close(self) -> None:
        self._channel.close()

    def _translate(self, name: str, error: Any) -> errors.PsError:
        code, text = error.code(), error.details()
        if code == Code.NOT_FOUND:
            return UnknownSessionError(f"server {self.server} ({self.address}): {text}")
        if code == Code.ALREADY_EXISTS:
            return NumberTakenError(f"server {self.server} ({self.address}): {text}")
        if code == Code.UNAVAILABLE:
            text = f"{text}; is it running, and does it use TLS as this side does?"
        elif code == Code.DEADLINE_EXCEEDED:
            text = f"no answer to {name} in time"
        elif code == Code.UNIMPLEMENTED:
            text = "what listens there is no parameter server of dmlcomm"
        kind = _ERRORS.get(code, errors.PsError)
        return kind(f"server {self.server} ({self.address}): {text}")
