"""A worker's connections to all servers: registration, rendezvous, and coming back after a loss."""

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.network import nic
from dmlcomm.network.seat import Seat
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import HEARTBEAT_TIMEOUT_S, RETURN_TIMEOUT_S, WAIT_SLICE_S, is_lost
from dmlcomm.ps.tls import Tls
from dmlcomm.ps.worker.backoff import Backoff
from dmlcomm.ps.worker.common_clock import steps_back
from dmlcomm.ps.worker.control import Control, NumberTakenError, UnknownSessionError
from dmlcomm.ps.worker.redirect import Route

# A proxy that takes longer to take a worker back is done without.
ATTACH_TIMEOUT_S = 1.0

# How long a worker that leaves waits until its pushes are in a version.
FLUSH_TIMEOUT_S = 5.0

# How long the meeting for a data connection may take.
CONNECT_TIMEOUT_S = 30.0


# A worker that starts waits so long for a server with a replica, before it asks another one.
SILENCE_S = 10.0

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

    route: Route
    token: str
    worker: int
    transport: str
    connect_timeout_s: float
    reconnect_timeout_s: float
    tls: Tls | None
    seat: Seat | None


class Connections:
    """Registered with all servers from construction on, except with those known to be lost.

    `core` is the core's client, whose operations the caller starts.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        addresses, self.by_proxy = options.route.first(options.connect_timeout_s)
        self._controls = self._controls_to(addresses)
        self._retired: list[Control] = []
        self._sessions: dict[int, str] = {}
        self._instances: dict[int, str] = {}  # of servers, when this worker connected
        self._lives: list[int] = []  # of servers, as these told before there was a core
        self._cut_off: errors.PsServerLostError | None = None
        self._incarnation = secrets.randbits(63)
        self._recovering = threading.RLock()
        self._moves = 0
        self.way_since = 0.0  # by time.monotonic(); the present way to the servers
        # What a server has got from this worker itself must not be repeated by a proxy. As soon as
        # one connection to a server was tried, others may be under way.
        self._stays_direct = not self.by_proxy
        self._may_move = True
        self.worker = options.worker
        self.num_workers = 0
        self.closed = False
        self.core: _core.PsClient | None = None
        try:
            self._connect_all()
            self.way_since = time.monotonic()
        except BaseException:
            self.close()
            raise

    def _controls_to(self, addresses: Sequence[str]) -> list[Control]:
        return [
            Control(server, address, self._options.token, self._options.tls)
            for server, address in enumerate(addresses)
        ]

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
        for server, health in healths.items():
            self._check(server, health)
        self._agree_on_clocks(sorted(healths))
        while missing := sorted(healths.keys() - self._sessions.keys()):
            for server in missing:
                self._instances[server] = healths[server].instance
                self._connect_patiently(server)
            if self.replicas:  # one may have come back meanwhile
                healths = self._wait_until_healthy()

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

    def _connect_patiently(self, server: int) -> None:
        """A number may be taken for a moment by a process that has just died.

        A proxy's part in a tree may end meanwhile; then it has another one.
        """
        backoff = Backoff(self._options.connect_timeout_s, f"server {server}")
        while True:
            try:
                return self._connect(server, no_models)
            except MAY_PASS as error:
                if self.replicas and server in self._sessions:
                    self._begin_anew()
                backoff.wait(error)
                if self.by_proxy:
                    return self.move(no_models, str(error), self._options.connect_timeout_s)
            if self.replicas and server not in self._wait_until_healthy():
                return None  # it was lost meanwhile

    def _begin_anew(self) -> None:
        """As another client: where the server's side of a failed connection has stood, this one is
        given up by all servers."""
        assert self.core is not None
        self.core.close()
        self.core = None
        for server in list(self._sessions):
            self._leave(server)
        self._sessions.clear()
        self._incarnation = secrets.randbits(63)

    def _wait_until_healthy(self) -> dict[int, Any]:
        """The answers of all servers but those that another one calls lost, by server."""
        backoff = Backoff(self._options.connect_timeout_s, "the parameter servers")
        healths: dict[int, Any] = {}
        asks_at = time.monotonic() + SILENCE_S
        while True:
            problem: errors.PsError | None = None
            for control in self._controls:
                if control.server in healths:
                    continue
                try:
                    healths[control.server] = control.call("Health", pb.HealthRequest())
                except (errors.PsConnectionError, errors.PsTimeoutError) as error:
                    problem = problem or error
            if disputed := _disputed(healths):
                problem = errors.PsConnectionError(
                    f"servers {disputed} have each found another one of them lost, and settle "
                    f"which one goes on"
                )
                healths = {s: health for s, health in healths.items() if s not in disputed}
            self._learn([list(health.lives) for health in healths.values()])
            lost = {server for server, life in enumerate(self._lives) if is_lost(life)}
            if healths and lost | healths.keys() >= set(range(self.num_servers)):
                return {server: healths[server] for server in healths.keys() - lost}
            if time.monotonic() >= asks_at:
                self._ask_about_silent(healths, lost)
            backoff.wait(problem)

    def _ask_about_silent(self, healths: dict[int, Any], lost: set[int]) -> None:
        """Without workers nobody else finds a server lost. Who does is asked for Health again."""
        with_replicas = [server for server, health in healths.items() if health.replicas]
        for silent in set(range(self.num_servers)) - healths.keys() - lost:
            for other in with_replicas:
                request = pb.VerdictRequest(about=silent, life=self._lives[silent])
                with contextlib.suppress(errors.PsError):
                    if self._controls[other].call("Verdict", request).lost:
                        healths.pop(other, None)

    def _learn(self, told: Sequence[Sequence[int]]) -> None:
        """The lives of servers, as some of them tell: the larger one is the newer."""
        newest = [max(lives) for lives in zip(*told, strict=False)]
        if self.core is not None:
            self.core.learn(newest)
            newest = self.core.heard()[: self.num_servers]
        self._lives = newest

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

    def _connect(self, server: int, recreate: Callable[[int], None]) -> None:
        """`recreate` makes the models known to a server that may have forgotten them."""
        seat = self._options.seat
        if seat is not None:
            seat.check()
        control = self._controls[server]
        reply = control.call(
            "Register",
            pb.RegisterRequest(
                worker=self.worker,
                host_id=_core.host_id(),
                host_name=_core.host_name(),
                nics=own_nics(),
                incarnation=self._incarnation,
                servers=self._options.route.servers,
                lives=self._lives,
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
        self.core.learn(self._lives)
        # A proxy has no model before a worker names it, and attaches nobody to a model that it does
        # not have. A server that was started again has its models, or the loss is told.
        recreate(server)
        rails = [(rail.worker_interface, rail.worker_address) for rail in reply.rails]
        refusals: list[errors.PsRefusedError] = []  # of a server that has seen sooner why

        def look_up(key: str) -> bytes:
            try:
                return self._look_up(server, key)
            except errors.PsRefusedError as error:
                refusals.append(error)
                raise

        try:
            self.core.connect(
                server,
                rails,
                reply.first_rail,
                lambda key, value: self._publish(server, key, value),
                look_up,
                CONNECT_TIMEOUT_S,
                self.by_proxy,
                seat.memory if seat else None,
                self._lives[server] if self.replicas else 0,
            )
        except (OSError, RuntimeError, ValueError) as error:  # as the core tells what went wrong
            if refusals:
                raise refusals[0] from error
            # ValueError: settings that have to be the same here and there.
            refused = isinstance(error, ValueError)
            kind = errors.PsRefusedError if refused else errors.PsConnectionError
            raise kind(
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
        asked = 0
        while True:
            try:
                wait_s = max(0.001, min(WAIT_SLICE_S, deadline - time.monotonic()))
                # Without replicas it is always the same one, also when its loss has been noticed.
                first = self.answering_servers()[0] if self.replicas else 0
                if first < asked:  # it is back
                    self.call(asked, "Barrier", ticket=ticket, withdraws=True)
                asked = first
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
        replicas nothing is connected again here: where the others have lost a server, too, its
        replica takes over, and where they have not it is this worker that is lost.
        """
        if self.replicas:
            self._replace(servers, reason)
            return
        assert self.core is not None
        with self._recovering:
            if self.by_proxy:
                self._move_if_lost(recreate, reason)
                return
            if not self.core.lost():  # another thread was faster
                return
            self._expect_reconnection(servers, reason)
            while lost := self.core.lost():  # also what only other operations have noticed
                limit_s = self._options.reconnect_timeout_s
                self._reconnect(lost[0], recreate, reason, limit_s)

    def _replace(self, servers: Sequence[int], reason: str) -> None:
        assert self.core is not None
        if self._cut_off is not None:
            raise self._cut_off
        if not servers:  # the answer of another server has told meanwhile
            return
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

    def _ask_others_about(self, server: int, reason: str, life: int | None = None) -> None:
        """Whether this server is lost for all, as another one finds: then its replica takes over.

        `life`: of the server, where it is not the one that this worker uses. Raises
        PsServerLostError if it is not lost: this worker alone does not reach it.
        """
        assert self.core is not None
        life = self.core.lives()[server] if life is None else life
        if is_lost(life):
            return
        where = f"server {server} ({self._controls[server].address})"
        advice = "look at the network of its host, and start it again"
        ended = None  # a server that counts this worker no more
        live = self.live_servers()
        # A server that has ended its connection to this worker does not live for it, but answers.
        for other in sorted(self._sessions.keys() - {server}, key=lambda o: (o not in live, o)):
            try:
                instance = self._instances.get(server, "")
                verdict = self.call(other, "Verdict", about=server, instance=instance, life=life)
            except (errors.PsConnectionError, errors.PsTimeoutError, UnknownSessionError) as error:
                get_logger().info("worker %d asks another server: %s", self.worker, error)
                ended = other if isinstance(error, UnknownSessionError) else ended
                continue
            if verdict.lost:
                if other not in live:  # it may be lost for all itself
                    continue
                self.core.confirm_lost(server, life)
                return
            raise errors.PsServerLostError(
                f"worker {self.worker} (host {_core.host_name()}) is cut off from {where}, which "
                f"server {other} reaches: {reason}; the others go on without this worker; {advice}",
                [server],
            )
        if ended is not None:
            raise errors.PsServerLostError(
                f"worker {self.worker} (host {_core.host_name()}) is cut off from {where}: "
                f"{reason}; server {ended} answers that the servers have taken this worker for "
                f"dead; the others go on without it; {advice}",
                [server],
            )
        raise errors.PsServerLostError(
            f"worker {self.worker} (host {_core.host_name()}) has lost {where}, and no other "
            f"server answers: {reason}; if the servers run, they have taken this worker for dead, "
            f"and it can be started again; else the job has to be",
            [server],
        )

    # --- servers that come back

    def look_for_returned(self) -> list[int]:
        """Servers that were lost and are back, as those that live tell; `take_back` connects."""
        assert self.core is not None
        if not self.core.lost_for_all():
            return []
        for server in self.live_servers():
            try:
                health = self._controls[server].call("Health", pb.HealthRequest())
            except (errors.PsConnectionError, errors.PsTimeoutError):
                continue  # operations notice
            self._learn([list(health.lives)])
        return list(self.core.returned())

    def take_back(self, server: int) -> None:
        """Connects to a server that is back. Raises PsError when it does not work, or not yet.

        It is filled once all workers have done so, and has no model before. This worker makes no
        model meanwhile.
        """
        health = self._controls[server].call("Health", pb.HealthRequest())
        self._check(server, health)
        self._learn([list(health.lives)])
        if is_lost(self._lives[server]):
            return
        self._instances[server] = health.instance
        self._connect(server, no_models)
        get_logger().warning("worker %d uses server %d again", self.worker, server)

    def leave_if_cut_off(self, server: int, reason: str) -> None:
        """After `take_back` has failed for long: unless others have lost the server again, too,
        this worker ends, so that nobody waits for it. Its operations raise then."""
        assert self.core is not None
        try:
            self._ask_others_about(server, reason, self.core.heard()[server])
        except errors.PsServerLostError as error:
            self._cut_off = error
            self.core.close()

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
                # It was started again, and is empty: see `recover`.
                self.core.disconnect(server, str(error))
            return
        with self._recovering:
            if self._sessions[server] != session:  # another thread was faster
                return
            if self.by_proxy:
                self.move(recreate, str(error), max(0.0, deadline - time.monotonic()))
            else:
                self._expect_reconnection([server], str(error))
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
                self._connect(server, recreate)
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

    # --- proxies

    def look(self, recreate: Callable[[int], None]) -> None:
        """Moves if the proxy is lost: a connection has ended, or it is silent for a while.

        Raises what `move` raises.
        """
        assert self.core is not None
        moves = self._moves
        is_silent = False
        try:
            if not self.core.lost():
                self._controls[0].call("Beat", pb.BeatRequest(), timeout_s=HEARTBEAT_TIMEOUT_S)
                return
            reason = "the connection to its proxy has ended"
        except errors.PsTimeoutError as error:
            reason, is_silent = str(error), True
        except errors.PsConnectionError as error:
            reason = str(error)
        with self._recovering:
            if self._moves == moves and self.by_proxy and not self.closed:
                self.move(recreate, reason, self.move_timeout_s, is_silent)

    def flush(self) -> bool:
        """Waits until what this worker has pushed, and closed, is safe; False if it takes long."""
        return not self.by_proxy or self.core is None or bool(self.core.flush(FLUSH_TIMEOUT_S))

    def _move_if_lost(self, recreate: Callable[[int], None], reason: str) -> None:
        assert self.core is not None
        if self.core.lost():
            self.move(recreate, reason, self.move_timeout_s)

    @property
    def may_move(self) -> bool:
        """Whether there is a proxy that this worker may lose, or come to."""
        return self._options.route.may_change

    @property
    def move_timeout_s(self) -> float:
        """A proxy may be lost also where a server may not."""
        return max(self._options.reconnect_timeout_s, RETURN_TIMEOUT_S)

    def move(
        self,
        recreate: Callable[[int], None],
        reason: str,
        limit_s: float,
        is_silent: bool = False,
    ) -> None:
        """Registers anew at all servers: by the proxy of this host if it answers, or directly.

        At all of them, as every server waits for all workers of a tree that has ended, and another
        operation of this worker may wait for another server meanwhile. It calls nobody who waits
        for other workers. The old connection to a server ends after the server has ended the tree
        that it belongs to: so no proxy takes this worker for lost.

        Args:
            is_silent: the proxy has not answered for a while, and is not asked again.

        Raises PsServerLostError when that takes longer than `limit_s`; PsRefusedError when a server
        has given this worker up.
        """
        with self._recovering:
            get_logger().warning("worker %d goes another way: %s", self.worker, reason)
            backoff = Backoff(limit_s, "the parameter servers")
            while self._may_move and not self.closed:
                try:
                    self._move_once(recreate, is_silent)
                    self._moves += 1
                    self.way_since = time.monotonic()
                    how = "by a proxy" if self.by_proxy else "without a proxy"
                    get_logger().warning("worker %d is back, %s", self.worker, how)
                    return
                except MAY_PASS as error:
                    problem: errors.PsError = error
                is_silent = False
                try:
                    backoff.wait(problem)
                except errors.PsError as error:
                    raise errors.PsServerLostError(
                        f"worker {self.worker} has lost its way to the servers, and found none "
                        f"within {limit_s:g} s: {error}; do the servers run?",
                        range(self.num_servers),
                    ) from error

    def stop_moving(self) -> None:
        """A worker that leaves need not find another way: `move` ends after the present attempt."""
        self._may_move = False

    def return_to_proxy(self, recreate: Callable[[int], None], limit_s: float) -> None:
        """As `move`, of a worker that goes directly; its caller knows that nothing is under way.

        A proxy that does not carry the job changes nothing.
        """
        with self._recovering:
            if self.by_proxy or self.closed or not self._options.route.again(ATTACH_TIMEOUT_S)[1]:
                return
            self._stays_direct = False
            self.move(recreate, "there is a proxy again", min(limit_s, self.move_timeout_s))

    def leave_proxy(self, recreate: Callable[[int], None], why: str) -> None:
        """As `move`, to the servers and for good. Raises PsModelError, see `Route.leave`."""
        with self._recovering:
            self._options.route.leave(why)
            if self.by_proxy:
                self.move(recreate, why, self.move_timeout_s)

    def _move_once(self, recreate: Callable[[int], None], is_silent: bool) -> None:
        route = self._options.route
        if is_silent or self._stays_direct:
            addresses, self.by_proxy = route.servers, False
        else:
            addresses, self.by_proxy = route.again(ATTACH_TIMEOUT_S)
        self._stays_direct = not self.by_proxy
        for server, control in enumerate(self._controls_to(addresses)):
            # Calls of other threads may still use the old one.
            self._retired.append(self._controls[server])
            self._controls[server] = control
            self._connect(server, recreate)

    def close(self) -> None:
        """Leaves all servers. Idempotent."""
        live = [] if self.closed else self.live_servers()
        self.closed = True
        if self.core is not None:
            self.core.close()
        for server in live:
            self._leave(server)
        for control in (*self._controls, *self._retired):
            control.close()

    def _leave(self, server: int) -> None:
        try:
            self.call(server, "Leave")
        except errors.PsError as error:
            get_logger().debug("leaving server %d: %s", server, error)
            if self.by_proxy:
                self._leave_directly(server)
            # Else it notices by the connection.

    def _leave_directly(self, server: int) -> None:
        """The proxy is gone: without this, the server would wait for this worker for a while."""
        control = Control(
            server, self._options.route.servers[server], self._options.token, self._options.tls
        )
        try:
            request = pb.LeaveRequest(worker=self.worker, incarnation=self._incarnation)
            control.call("Leave", request)
        except errors.PsError as error:
            get_logger().debug("leaving server %d without the proxy: %s", server, error)
        finally:
            control.close()


def _disputed(healths: dict[int, Any]) -> list[int]:
    """Servers of which each calls another one lost that calls it lost."""

    def life(of: int, by: int) -> int:
        return next(iter(healths[by].lives[of : of + 1]), 0)

    def calls_lost(one: int, other: int) -> bool:
        return is_lost(life(other, one)) and life(other, one) >= life(other, other)

    pairs = itertools.combinations(sorted(healths), 2)
    return sorted({s for a, b in pairs if calls_lost(a, b) and calls_lost(b, a) for s in (a, b)})


def no_models(server: int) -> None:
    """What a worker makes known to a server before it has any model."""


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
