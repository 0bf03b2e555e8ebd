"""A worker's connections to all servers: registration, rendezvous, and coming back after a loss."""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.network import nic
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import WAIT_SLICE_S
from dmlcomm.ps.tls import Tls
from dmlcomm.ps.worker.backoff import Backoff
from dmlcomm.ps.worker.common_clock import steps_back
from dmlcomm.ps.worker.control import Control, NumberTakenError, UnknownSessionError

# How long the meeting for a data connection may take.
CONNECT_TIMEOUT_S = 30.0


# Errors that may pass: of a server that starts, or has not noticed a death yet.
MAY_PASS = (
    errors.PsConnectionError,
    errors.PsTimeoutError,
    NumberTakenError,
    UnknownSessionError,
)


@dataclass(frozen=True)
class ConnectionOptions:
    """See `dmlcomm.ps.Client`."""

    servers: Sequence[str]
    token: str
    worker: int
    transport: str
    connect_timeout_s: float
    reconnect_timeout_s: float
    tls: Tls | None


class Connections:
    """Registered with all servers from construction on, except with those known to be lost.

    `core` is the core's client, whose operations the caller starts.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._controls = [
            Control(server, address, options.token, options.tls)
            for server, address in enumerate(options.servers)
        ]
        self._sessions: dict[int, str] = {}
        self._instances: dict[int, str] = {}  # of servers, when this worker connected
        self._incarnation = secrets.randbits(63)
        self._recovering = threading.Lock()
        self.worker = options.worker
        self.num_workers = 0
        self.closed = False
        self.core: _core.PsClient | None = None
        try:
            self._connect_all()
        except BaseException:
            self.close()
            raise

    @property
    def num_servers(self) -> int:
        return len(self._controls)

    def live_servers(self) -> list[int]:
        """Servers that this worker is registered with and has not lost."""
        lost = set(self.core.lost()) if self.core else set()
        return [server for server in sorted(self._sessions) if server not in lost]

    def answering_servers(self) -> list[int]:
        """Those of the live ones that may decide for all, first the one that does.

        Without replicas all are needed. With them the first that answers decides: all workers find
        the same, also before they notice by their data connections that a server has died.
        """
        if not self.replicas:
            return self.live_servers()
        servers = []
        for server in self.live_servers():
            try:
                self._controls[server].call("Health", pb.HealthRequest())
                servers.append(server)
            except (errors.PsConnectionError, errors.PsTimeoutError) as error:
                self._ask_others_about(server, str(error))
        return servers

    def session(self, server: int) -> str:
        """Another one once this worker has connected to the server again."""
        return self._sessions[server]

    def call(self, server: int, name: str, wait_s: float = 0.0, **fields: Any) -> Any:
        """A call within this worker's session with the server."""
        request = getattr(pb, f"{name}Request")(session=self._sessions[server], **fields)
        if wait_s:
            request.wait_ms = int(wait_s * 1000)
        return self._controls[server].call(name, request, wait_s)

    def _connect_all(self) -> None:
        healths = self._wait_until_healthy()
        self.replicas = min(healths.items())[1].replicas
        self._instances = {server: health.instance for server, health in healths.items()}
        for server, health in healths.items():
            self._check(server, health)
        self._agree_on_clocks(sorted(healths))
        for server in sorted(healths):
            self._connect_patiently(server)

    def _agree_on_clocks(self, servers: Sequence[int]) -> None:
        """Servers that have read checkpoints, and no worker yet, continue from the same clocks."""
        if len(servers) == 1:
            return
        restored = {
            server: self._controls[server].call("Restored", pb.RestoredRequest())
            for server in servers
        }
        for server, clocks in steps_back(restored).items():
            self._controls[server].call("GoBack", pb.GoBackRequest(clocks=clocks))

    def _wait_until_healthy(self) -> dict[int, Any]:
        """The answers of all servers but those that another one calls lost, by server."""
        backoff = Backoff(self._options.connect_timeout_s, "the parameter servers")
        healths: dict[int, Any] = {}
        while True:
            problem: errors.PsError | None = None
            for control in self._controls:
                if control.server in healths:
                    continue
                try:
                    healths[control.server] = control.call("Health", pb.HealthRequest())
                except (errors.PsConnectionError, errors.PsTimeoutError) as error:
                    problem = problem or error
            lost = {server for health in healths.values() for server in health.lost_servers}
            if healths and lost | healths.keys() >= set(range(self.num_servers)):
                return {server: healths[server] for server in healths.keys() - lost}
            backoff.wait(problem)

    def _check(self, server: int, health: Any) -> None:
        """Raises PsRefusedError when this is not the server of the job that the address is for."""
        actual = (health.server, health.num_servers, health.replicas)
        expected = (server, self.num_servers, self.replicas)
        if actual != expected:
            text = "server {} of {} with {} replicas"
            raise errors.PsRefusedError(
                f"{self._controls[server].address} is {text.format(*actual)}; expected "
                f"{text.format(*expected)}: give the addresses of all servers of one job, in their "
                f"order"
            )

    def _connect_patiently(self, server: int) -> None:
        """A number may be taken for a moment by a process that has just died."""
        backoff = Backoff(self._options.connect_timeout_s, f"server {server}")
        while True:
            try:
                return self._connect(server)
            except MAY_PASS as error:
                backoff.wait(error)

    def _connect(self, server: int) -> None:
        control = self._controls[server]
        reply = control.call(
            "Register",
            pb.RegisterRequest(
                worker=self.worker,
                host_id=_core.host_id(),
                host_name=_core.host_name(),
                nics=own_nics(),
                incarnation=self._incarnation,
                servers=self._options.servers,
            ),
        )
        self._sessions[server] = reply.session
        self.worker = reply.worker
        if self.core is None:
            # The servers drop what they have had; this counts operations from the time on, so that
            # those of a process that is started again are new.
            self.core = _core.PsClient(
                self.worker, self.num_servers, time.time_ns(), self._options.transport
            )
        self.num_workers = reply.num_workers
        rails = [(rail.worker_interface, rail.worker_address) for rail in reply.rails]
        try:
            self.core.connect(
                server,
                rails,
                reply.first_rail,
                lambda key, value: self._publish(server, key, value),
                lambda key: self._look_up(server, key),
                CONNECT_TIMEOUT_S,
            )
        except (OSError, RuntimeError) as error:  # as the core tells what has gone wrong
            raise errors.PsConnectionError(
                f"server {server} ({control.address}): no data connection: {error}"
            ) from error

    def _publish(self, server: int, key: str, value: bytes) -> None:
        self.call(server, "Publish", key=key, value=value)

    def _look_up(self, server: int, key: str) -> bytes:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while time.monotonic() < deadline:
            reply = self.call(server, "Lookup", wait_s=WAIT_SLICE_S, key=key)
            if reply.found:
                return bytes(reply.value)
        raise errors.PsTimeoutError(
            f"server {server} ({self._controls[server].address}) did not publish its side of the "
            f"data connection within {CONNECT_TIMEOUT_S:g} s"
        )

    def barrier(self, timeout_s: float, recreate: Callable[[int], None]) -> None:
        """Raises PsTimeoutError, which names who has not come, and what `recover` raises.

        Workers that wait here send nothing that would tell them of a server's death: the call
        itself tells, and they connect anew to a server that was started again meanwhile.
        """
        backoff = Backoff(timeout_s, "the barrier")
        ticket = secrets.randbits(63)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                wait_s = max(0.001, min(WAIT_SLICE_S, deadline - time.monotonic()))
                # Without replicas it is always the same one, also when its loss has been noticed.
                first = self.answering_servers()[0] if self.replicas else 0
                session = self._sessions[first]
                reply = self.call(first, "Barrier", wait_s=wait_s, ticket=ticket)
            except (errors.PsConnectionError, UnknownSessionError) as error:
                backoff.wait(error)
                self.renew(first, session, recreate, error, deadline)
                continue
            if reply.passed:
                return
            missing = f"workers {list(reply.missing)} have not come"
            if reply.not_yet_registered:
                missing += f", {reply.not_yet_registered} have not registered yet"
            if time.monotonic() >= deadline:
                raise errors.PsTimeoutError(
                    f"worker {self.worker}: barrier did not pass within {timeout_s:g} s: {missing}"
                )

    def recover(self, servers: Sequence[int], recreate: Callable[[int], None], reason: str) -> None:
        """Connects again to lost servers; `recreate` then makes the models known to each.

        Raises PsServerLostError when one does not come back in time, or has lost a model. With
        replicas nothing is connected again: where the others have lost a server, too, its replica
        takes over, and where they have not it is this worker that is lost.
        """
        if self.replicas:
            self._replace(servers, reason)
            return
        self._expect_reconnection(servers, reason)
        with self._recovering:
            assert self.core is not None
            for server in servers:
                if server in self.core.lost():  # else another thread was faster
                    limit_s = self._options.reconnect_timeout_s
                    self._reconnect(server, recreate, reason, limit_s)

    def _replace(self, servers: Sequence[int], reason: str) -> None:
        assert self.core is not None
        replaced = self.core.lost_for_all()
        suspected = [server for server in servers if server not in replaced]
        if not suspected:
            raise errors.PsServerLostError(
                f"worker {self.worker} has lost servers {list(servers)} and with them a shard and "
                f"its replica: {reason}; the job has to be started again",
                servers,
            )
        for server in suspected:
            self._ask_others_about(server, reason)

    def _ask_others_about(self, server: int, reason: str) -> None:
        """Whether this server is lost for all, as another one finds: then its replica takes over.

        Raises PsServerLostError if it is not: this worker alone does not reach it.
        """
        assert self.core is not None
        where = f"server {server} ({self._controls[server].address})"
        for other in self.live_servers():
            if other == server:
                continue
            try:
                verdict = self.call(
                    other, "Verdict", about=server, instance=self._instances[server]
                )
            except (errors.PsConnectionError, errors.PsTimeoutError, UnknownSessionError) as error:
                get_logger().info("worker %d asks another server: %s", self.worker, error)
                continue
            if verdict.lost:
                self.core.confirm_lost(server)
                return
            raise errors.PsServerLostError(
                f"worker {self.worker} (host {_core.host_name()}) is cut off from {where}, which "
                f"server {other} reaches: {reason}; the others go on without this worker; look at "
                f"the network of its host, and start it again",
                [server],
            )
        raise errors.PsServerLostError(
            f"worker {self.worker} (host {_core.host_name()}) has lost {where}, and no other "
            f"server answers: {reason}; if the servers run, they have taken this worker for dead, "
            f"and it can be started again; else the job has to be",
            [server],
        )

    def recover_all(self, recreate: Callable[[int], None]) -> None:
        """As `recover`, of all servers that are known to be lost; with replicas none is needed."""
        assert self.core is not None
        lost = [] if self.replicas else list(self.core.lost())
        if lost:
            self.recover(lost, recreate, "the connection has ended")

    def _expect_reconnection(self, servers: Sequence[int], reason: str) -> None:
        if self._options.reconnect_timeout_s == 0:
            raise errors.PsServerLostError(
                f"worker {self.worker} has lost servers {list(servers)}, and does not connect "
                f"again: {reason}",
                servers,
            )

    def renew(
        self,
        server: int,
        session: str,
        recreate: Callable[[int], None],
        error: errors.PsError,
        deadline: float,
    ) -> None:
        """After a call within `session` has failed: connects again, or leaves it to a replica."""
        if self.replicas:
            if isinstance(error, UnknownSessionError) and self.core is not None:
                # It was started again, and stays out: see `recover`.
                self.core.disconnect(server, str(error))
            return
        self._expect_reconnection([server], str(error))
        with self._recovering:
            if self._sessions[server] == session:  # else another thread was faster
                remaining_s = max(0.0, deadline - time.monotonic())
                limit_s = min(self._options.reconnect_timeout_s, remaining_s)
                self._reconnect(server, recreate, str(error), limit_s)

    def _reconnect(
        self, server: int, recreate: Callable[[int], None], reason: str, limit_s: float
    ) -> None:
        where = f"server {server} ({self._controls[server].address})"
        get_logger().warning(
            "worker %d has lost %s: %s; connecting again for %g s",
            self.worker,
            where,
            reason,
            limit_s,
        )
        backoff = Backoff(limit_s, where)
        assert self.core is not None
        while True:
            try:
                self._connect(server)
                recreate(server)
                get_logger().warning("worker %d is connected to %s again", self.worker, where)
                return
            except MAY_PASS as error:
                problem: errors.PsError = error
            try:
                backoff.wait(problem)
            except errors.PsError as error:
                raise errors.PsServerLostError(
                    f"{where} is lost, and did not come back within {limit_s:g} s: {error}; start "
                    f"it again with its --checkpoint, or start servers with --replicas 1",
                    [server],
                ) from error

    def close(self) -> None:
        """Leaves all servers. Idempotent."""
        live = [] if self.closed else self.live_servers()
        self.closed = True
        if self.core is not None:
            self.core.close()
        for server in live:
            self._leave(server)
        for control in self._controls:
            control.close()

    def _leave(self, server: int) -> None:
        try:
            self.call(server, "Leave")
        except errors.PsError as error:
            # It notices by the connection.
            get_logger().debug("leaving server %d: %s", server, error)


def own_nics() -> list[Any]:
    """This host's; servers of the same host need none."""
    try:
        rails = nic.own_rails()
    except nic.InterfaceError as error:
        get_logger().info("no NIC is usable between hosts: %s", error)
        return []
    return [
        pb.Nic(interface=r.interface, address=r.address, prefix_length=r.prefix_length)
        for r in rails
    ]
