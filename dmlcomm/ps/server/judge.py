"""Whether another server of the job is lost: a server decides by asking it, not a worker."""

import threading

import grpc

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps.server.peers import Peers


class Judge:
    """Any thread may call.

    A worker whose own network fails must not take a server from the others. So what a worker has
    lost this server asks, as Health, at the address that workers have for it.
    """

    def __init__(self, core: _core.PsServer, peers: Peers) -> None:
        self._core = core
        self.peers = peers
        self._lock = threading.Lock()

    def reason_of_loss(self, server: int, instance: str, life: int) -> str:
        """Why this life of the server has ended; empty if it lives.

        `instance`: of its start; empty if the worker does not know it.
        """
        with self._lock:
            if self._core.lives()[server] > life:
                return "it was found lost before"
            problem = self._problem(server, instance)
            if problem:
                self.lose(server, life, problem)
            return problem

    def lose(self, server: int, life: int, reason: str) -> None:
        """From now on no worker uses the server."""
        get_logger().error("server %d is lost, and its replica takes over: %s", server, reason)
        self._core.lose(server, life)

    def _problem(self, server: int, instance: str) -> str:
        if server >= len(self.peers.addresses):
            return f"nobody knows an address of server {server}"
        address = self.peers.addresses[server]
        try:
            health = self.peers.health(server)
        except grpc.RpcError as error:
            return f"{address} does not answer: {error.details()}"
        is_same = health.instance == instance or not instance
        return "" if is_same else f"{address} was started again"
