"""Makes a model on all servers: one worker provides its first values, the others wait for them."""

import time
from collections.abc import Sequence
from typing import Any

from dmlcomm import errors
from dmlcomm.log import get_logger
from dmlcomm.ps.client_model import ClientModel
from dmlcomm.ps.connections import Connections
from dmlcomm.ps.description import describe, spec_of
from dmlcomm.ps.operations import Operations, nothing
from dmlcomm.ps.protocol import PROGRESS_INTERVAL_S, WAIT_SLICE_S


class Creation:
    """The first live server elects who provides, see `dmlcomm.ps.models.Models`."""

    def __init__(self, connections: Connections, operations: Operations, timeout_s: float) -> None:
        self._connections = connections
        self._operations = operations
        self._timeout_s = timeout_s

    def create(self, made: ClientModel, weights: Any) -> None:
        """Returns when the model has values on all servers; `weights` are used if they are needed.

        Raises PsModelError, PsTimeoutError, PsServerLostError.
        """
        spec = spec_of(made.description)  # ValueError before anything is sent
        first, *others = self._connections.answering_servers()
        created = self._create_on(first, made, elect=True)
        replies = [created, *(self._create_on(server, made) for server in others)]
        assert self._connections.core is not None
        # Servers may be a little apart. Where the slowest worker is on one of them this one begins.
        clock = max(reply.clock for reply in replies)
        self._connections.core.add_model(made.number, spec, clock)
        if created.provide or (not created.sealed and self._wait(first, made)):
            self._provide(made, weights, [*others, first])
        else:
            for server in others:
                self.recreate(server, made)

    def recreate(self, server: int, made: ClientModel) -> None:
        """Makes the model known to a server that was started again, and must have its values."""
        if not self._create_on(server, made).sealed:
            raise errors.PsServerLostError(
                f'server {server} was started again without its part of model "{made.name}", which '
                f"other servers have; start servers with --checkpoint, or all of them anew",
                [server],
            )

    def _create_on(self, server: int, made: ClientModel, elect: bool = False) -> Any:
        return self._connections.call(server, "CreateModel", model=made.description, elect=elect)

    def _wait(self, first: int, made: ClientModel) -> bool:
        """Waits for the first values; True if this worker has to provide them after all."""
        begin = last_line = time.monotonic()
        while True:
            reply = self._connections.call(
                first, "WaitModel", wait_s=WAIT_SLICE_S, model=made.number
            )
            if reply.sealed or reply.provide:
                return bool(reply.provide)
            now = time.monotonic()
            text = (
                f'worker {self._connections.worker}: model "{made.name}": waiting for the first '
                f"values, which worker {reply.provider} provides, since {now - begin:.0f} s"
            )
            if now - begin > self._timeout_s:
                raise errors.PsTimeoutError(f"{text}; is it alive?")
            if now - last_line > PROGRESS_INTERVAL_S:
                last_line = now
                get_logger().warning("%s", text)

    def _provide(self, made: ClientModel, weights: Any, order: Sequence[int]) -> None:
        get_logger().info(
            'worker %d provides the first values of model "%s": %s',
            self._connections.worker,
            made.name,
            describe(made.description),
        )
        memories = made.readable(weights)
        buffers = made.layout.buffers(memories)
        self._operations.run(
            f'first values of model "{made.name}"',
            lambda core, _: core.start_set(made.number, buffers),
            nothing,
            memories,
        )
        # The first server last: workers that wait there find the model complete everywhere.
        for server in order:
            self._connections.call(server, "SealModel", model=made.number)
