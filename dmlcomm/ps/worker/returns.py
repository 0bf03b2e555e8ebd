"""The thread by which a worker comes to servers that were lost, and are back."""

import threading
import time
from contextlib import AbstractContextManager

from dmlcomm import errors
from dmlcomm.log import get_logger
from dmlcomm.ps.protocol import RETURN_INTERVAL_S
from dmlcomm.ps.worker.connections import Connections

# Others wait meanwhile: a worker that does not reach the server for so long is cut off.
TAKE_BACK_TIMEOUT_S = 15.0


class Returns:
    """Looks while a server is lost, whatever the worker's operations wait for.

    `no_creation` holds while this worker makes no model.
    """

    def __init__(
        self, connections: Connections, no_creation: AbstractContextManager[object]
    ) -> None:
        self._connections = connections
        self._no_creation = no_creation
        self._since: dict[int, float] = {}  # when a server was first found to be back
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if connections.replicas:
            self._thread = threading.Thread(
                target=self._run, name="dmlcomm-ps-returns", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(RETURN_INTERVAL_S):
            for server in self._connections.look_for_returned():
                self._take_back(server)

    def _take_back(self, server: int) -> None:
        since = self._since.setdefault(server, time.monotonic())
        try:
            with self._no_creation:
                self._connections.take_back(server)
        except errors.PsError as error:
            get_logger().info("server %d is back, but not for this worker: %s", server, error)
            if time.monotonic() - since > TAKE_BACK_TIMEOUT_S:
                self._connections.leave_if_cut_off(server, str(error))
            return
        self._since.pop(server)
