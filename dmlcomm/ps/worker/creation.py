"""Makes a model on all servers: one worker provides its first values, the others wait for them."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dmlcomm import errors
from dmlcomm.log import get_logger
from dmlcomm.ps.description import describe, spec_of
from dmlcomm.ps.protocol import PROGRESS_INTERVAL_S, WAIT_SLICE_S
from dmlcomm.ps.worker.backoff import Backoff
from dmlcomm.ps.worker.connections import Connections
from dmlcomm.ps.worker.control import UnknownSessionError
from dmlcomm.ps.worker.model import ClientModel
from dmlcomm.ps.worker.operations import Operations, nothing


class _InterruptedError(errors.PsError):
    """A call within a session has failed: the server is lost, or was started again."""

    def __init__(self, server: int, session: str, error: errors.PsError) -> None:
        super().__init__(str(error))
        self.server = server
        self.session = session
        self.error = error


@dataclass
class _Providing:
    """A model whose first values this worker sends; `elector` is the server that has chosen it."""

    made: ClientModel
    elector: int
    interruption: _InterruptedError | None = None

    def check(self) -> None:
        if self.interruption is not None:
            raise self.interruption


def _without_its_part(server: int, made: ClientModel) -> errors.PsServerLostError:
    return errors.PsServerLostError(
        f'server {server} was started again without its part of model "{made.name}", which '
        f"other servers have; start servers with --checkpoint, or all of them anew",
        [server],
    )


class Creation:
    """The first live server elects who provides, see `dmlcomm.ps.server.models.Models`."""

    def __init__(
        self,
        connections: Connections,
        operations: Operations,
        recreate: Callable[[int], None],
    ) -> None:
        self._connections = connections
        self._operations = operations
        self._recreate = recreate
        # Held while a model is made: servers that come back are taken in before or after. While
        # this worker waits for another one it is not, and creation begins anew where one was.
        self.lock = threading.Lock()
        # While it is made: also a model that no operation is started on is made known again.
        self._making: ClientModel | None = None
        # While first values are on their way.
        self._providing: _Providing | None = None

    def create(self, made: ClientModel, weights: Any, known: dict[str, ClientModel]) -> None:
        """Returns when the model has values on all servers; `weights` are used if they are needed.

        It is in `known` then. When a server was started again meanwhile, or before, it connects
        again and begins anew.

        Raises PsModelError, PsTimeoutError, PsServerLostError.
        """
        timeout_s = self._operations.timeout_s
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(timeout_s, f'model "{made.name}"')
        sealed: set[int] = set()
        while True:
            try:
                self._making = made
                with self.lock:
                    self._create(made, weights, deadline, sealed)
                    known[made.name] = made
                return
            except _InterruptedError as lost:
                backoff.wait(lost.error)
                self._connections.renew(
                    lost.server, lost.session, self._recreate, lost.error, deadline
                )
            finally:
                self._making = None

    def _create(self, made: ClientModel, weights: Any, deadline: float, sealed: set[int]) -> None:
        """One attempt; `sealed` are the servers that may have this worker's values for good."""
        spec = spec_of(made.description)  # ValueError before anything is sent
        self._connections.recover_all(self._recreate)
        first, *others = self._connections.answering_servers()
        replies = {}
        for server in (first, *others):
            with self._interruptible(server):
                replies[server] = self._create_on(server, made, elect=server == first)
        created = replies[first]
        assert self._connections.core is not None
        # Servers may differ a little: this worker begins at the highest of their clocks.
        clock = max(reply.clock for reply in replies.values())
        self._connections.core.add_model(made.number, spec, clock)
        if created.provide or (not created.sealed and self._wait(first, made, deadline)):
            self._expect_no_values_of_another(first, others, made, sealed)
            self._provide(made, weights, [*others, first], sealed)
        else:
            for server in others:
                with self._interruptible(server):
                    self.recreate(server, made)

    def _expect_no_values_of_another(
        self, first: int, others: Sequence[int], made: ClientModel, sealed: set[int]
    ) -> None:
        """Asked by who provides: a worker before it may have got far, here or before a restart."""
        for server in others:
            with self._interruptible(server):
                reply = self._create_on(server, made)
            if reply.sealed and server not in sealed:
                raise errors.PsServerLostError(
                    f'model "{made.name}": server {server} has first values of another worker, and '
                    f"server {first} has none: that worker has ended before it was done, or server "
                    f"{first} was started again without its part; start the job anew",
                    [first],
                )

    def recreate(self, server: int, made: ClientModel) -> None:
        """Makes the model known to a server, which must have its values.

        The server was started again, or may have gone on without this worker.
        """
        reply = self._create_on(server, made)
        if not reply.sealed:
            raise _without_its_part(server, made)
        if reply.is_new and self._connections.core is not None:
            self._connections.core.skip_to(made.number, server, reply.clock)

    def recreate_unfinished(self, server: int) -> None:
        """The same for the model that is made at the moment, which may have no values yet.

        If this worker provides them, they are sent again; if another worker was elected meanwhile,
        creation then begins anew. Any thread may call whose operation connects again.
        """
        providing, making = self._providing, self._making
        if providing is None:
            if making is not None:
                self._create_on(server, making)
            return
        made = providing.made
        reply = self._create_on(server, made, elect=server == providing.elector)
        if server == providing.elector and not reply.provide:
            problem = errors.PsConnectionError(
                f"server {server} was started again, and has chosen another worker to provide "
                f'model "{made.name}"'
            )
            # Of no session: the connection is new, and good.
            providing.interruption = _InterruptedError(server, "", problem)

    def _create_on(self, server: int, made: ClientModel, elect: bool = False) -> Any:
        return self._connections.call(server, "CreateModel", model=made.description, elect=elect)

    @contextlib.contextmanager
    def _interruptible(self, server: int) -> Iterator[None]:
        """Calls to a server after whose loss the creation begins anew."""
        session = self._connections.session(server)
        try:
            yield
        except (errors.PsConnectionError, UnknownSessionError) as error:
            raise _InterruptedError(server, session, error) from error

    def _wait(self, first: int, made: ClientModel, deadline: float) -> bool:
        """Waits for the first values; True if this worker has to provide them after all."""
        begin = last_line = time.monotonic()
        while True:
            with self._interruptible(first):
                reply = self._ask_for_values(first, made)
            if reply.sealed or reply.provide:
                return bool(reply.provide)
            now = time.monotonic()
            text = (
                f'worker {self._connections.worker}: model "{made.name}": waiting for the first '
                f"values, which worker {reply.provider} provides, since {now - begin:.0f} s"
            )
            if now > deadline:
                raise errors.PsTimeoutError(f"{text}; is it alive?")
            if now - last_line > PROGRESS_INTERVAL_S:
                last_line = now
                get_logger().warning("%s", text)

    def _ask_for_values(self, first: int, made: ClientModel) -> Any:
        live = self._connections.live_servers()
        self.lock.release()
        try:
            reply = self._connections.call(
                first, "WaitModel", wait_s=WAIT_SLICE_S, model=made.number
            )
        finally:
            self.lock.acquire()
        if live != self._connections.live_servers():
            raise errors.PsConnectionError("a server was lost, or is back")
        return reply

    def _provide(
        self, made: ClientModel, weights: Any, order: Sequence[int], sealed: set[int]
    ) -> None:
        get_logger().info(
            'worker %d provides the first values of model "%s": %s',
            self._connections.worker,
            made.name,
            describe(made.description),
        )
        memory, owner = made.readable(weights)
        self._providing = providing = _Providing(made, elector=order[-1])
        try:
            self._operations.run(
                f'first values of model "{made.name}"',
                lambda core, _: core.start_set(made.number, memory),
                nothing,
                owner,
                before_retry=providing.check,
            )
        finally:
            self._providing = None
        providing.check()
        # The first server last: workers that wait there find the model complete everywhere.
        for server in order:
            sealed.add(server)
            with self._interruptible(server):
                self._connections.call(server, "SealModel", model=made.number)
