"""The thread that watches a client's way to the servers, where there are proxies."""

import threading
from collections.abc import Callable

from dmlcomm import errors
from dmlcomm.log import get_logger
from dmlcomm.ps.worker.connections import ATTACH_TIMEOUT_S, Connections
from dmlcomm.ps.worker.operations import Operations
from dmlcomm.ps.worker.redirect import Route

# How often it looks whether connections stand and the proxy lives.
WATCH_INTERVAL_S = 0.25
# How many of these pass between two looks for a proxy, by a worker that has none.
LOOKS_PER_SEARCH = 4


class Watch:
    """A worker that has lost its proxy registers anew at once, whatever its operations wait for.

    All workers of a tree that has ended have to, before any of them goes on by a proxy. A worker
    whose proxy is there again goes back to it when nothing of it is under way.
    """

    def __init__(
        self,
        route: Route,
        connections: Connections,
        operations: Operations,
        recreate: Callable[[int], None],
    ) -> None:
        self._route = route
        self._connections = connections
        self._operations = operations
        self._recreate = recreate
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if route.may_change:
            self._thread = threading.Thread(target=self._run, name="dmlcomm-ps-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        rounds = 0
        while not self._closed.wait(WATCH_INTERVAL_S):
            rounds += 1
            try:
                self._look(rounds % LOOKS_PER_SEARCH == 0)
            except errors.PsError as error:
                # Operations tell the caller.
                get_logger().error("worker %d: %s", self._connections.worker, error)
                if isinstance(error, errors.PsRefusedError):
                    return

    def _look(self, searches: bool) -> None:
        connections = self._connections
        if connections.by_proxy:
            connections.look(self._recreate)
        elif searches and self._route.has_proxy(ATTACH_TIMEOUT_S):
            self._operations.when_idle(self._return)

    def _return(self, limit_s: float) -> None:
        self._connections.return_to_proxy(self._recreate, limit_s)
