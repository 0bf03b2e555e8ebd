"""Whether another server of the job is lost: a server decides by asking it, not a worker."""

import threading
from collections.abc import Sequence

import grpc

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps._proto import dmlcomm_ps_pb2_grpc as pb_grpc
from dmlcomm.ps.tls import Tls, channel_credentials

# A server that lives answers in less, also while it is busy.
ANSWER_TIMEOUT_S = 3.0


class Judge:
    """Any thread may call.

    A worker whose own network fails must not take a server from the others. So what a worker has
    lost this server asks, as Health, at the address that workers have for it.
    """

    def __init__(self, core: _core.PsServer, tls: Tls | None) -> None:
        self._core = core
        self._tls = tls
        self._lock = threading.Lock()
        self._addresses: Sequence[str] = ()

    def learn(self, addresses: Sequence[str]) -> None:
        """Of all servers; the first worker tells."""
        self._addresses = self._addresses or tuple(addresses)

    def reason_of_loss(self, server: int, instance: str) -> str:
        """Why the server is lost; empty if it lives. `instance`: of its start."""
        with self._lock:
            if server in self._core.lost_servers():
                return "it was found lost before"
            problem = self._problem(server, instance)
            if problem:
                get_logger().error(
                    "server %d is lost, and its replica takes over: %s", server, problem
                )
                self._core.lose(server)
            return problem

    def _problem(self, server: int, instance: str) -> str:
        if server >= len(self._addresses):
            return f"nobody knows an address of server {server}"
        if self._tls is not None and self._tls.ca is None:
            return "a worker has lost it, and this server cannot ask it without --tls-ca"
        address = self._addresses[server]
        channel = (
            grpc.insecure_channel(address)
            if self._tls is None
            else grpc.secure_channel(address, channel_credentials(self._tls))
        )
        with channel:
            try:
                health = pb_grpc.ParameterServerStub(channel).Health(
                    pb.HealthRequest(), timeout=ANSWER_TIMEOUT_S
                )
            except grpc.RpcError as error:
                return f"{address} does not answer: {error.details()}"
        return "" if health.instance == instance else f"{address} was started again"
