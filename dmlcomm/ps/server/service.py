"""The calls of the control plane, as a server answers them."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from dmlcomm import _core
from dmlcomm.errors import PsCheckpointError
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps._proto import dmlcomm_ps_pb2_grpc as pb_grpc
from dmlcomm.ps.pairing import STRIPE, Pairing, pair
from dmlcomm.ps.protocol import (
    LAST_LIFE,
    PROTOCOL_KEY,
    PROTOCOL_VERSION,
    RETURN_TIMEOUT_S,
    TOKEN_KEY,
    same_token,
)
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.background import Checkpoints
from dmlcomm.ps.server.barrier import Barrier
from dmlcomm.ps.server.judge import Judge
from dmlcomm.ps.server.membership import Membership, Session
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.proxies import Proxies
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.server.settlement import Settlement
from dmlcomm.ps.server.status import ServerView, alive_workers
from dmlcomm.rail import Rail

# How long a worker that has registered may take to connect.
JOIN_TIMEOUT_S = 30.0

# Longest slice of a call that waits; longer requests are answered "not yet" after it.
MAX_WAIT_S = 10.0

# Of one answer with pieces: enough that a call costs little, few enough to hold in memory.
COPY_BYTES = 8 << 20

HEALTH = "/dmlcomm.ps.v1.ParameterServer/Health"

NO_RAILS = Pairing((), 0)


class Service(pb_grpc.ParameterServerServicer):  # type: ignore[misc]
    """One method per call; each may raise Refusal, which `Admission` turns into the answer."""

    def __init__(
        self,
        core: _core.PsServer,
        view: ServerView,
        membership: Membership,
        models: Models,
        nics: Callable[[], list[Rail]],
        checkpoints: Checkpoints | None = None,
        judge: Judge | None = None,
        settlement: Settlement | None = None,
        seat: _core.JobSeat | None = None,
        return_timeout_s: float = RETURN_TIMEOUT_S,
    ) -> None:
        self._core = core
        self._view = view
        self._membership = membership
        self._models = models
        self._nics = nics
        self._checkpoints = checkpoints
        self._judge = judge
        self._settlement = settlement
        self._seat = seat
        self._barrier = Barrier(membership.live_workers, membership.num_missing)
        # Sessions of proxies, by place: they count as no workers.
        self._below = Membership(0, lambda: proxies_of(alive_workers(core.status())))
        self._proxies = Proxies(
            *(core, view.server, view.num_servers, membership, self._below, models),
            return_timeout_s=return_timeout_s,
        )

    def close(self) -> None:
        """Ends every wait, so that no call keeps the process."""
        self._membership.close()
        self._below.close()
        self._proxies.close()
        self._barrier.close()

    def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._checkpoints is not None:
            self._checkpoints.begin()
        if self._judge is not None:
            self._judge.peers.learn(request.servers)
        if request.proxy:
            return self._begin(self._below, request, self._proxies.register(request))
        if request.worker < 0:
            self._expect_filled()  # the workers of the job have not all come
        self._expect_settled(request)
        with self._proxies.arriving(request):
            session = self._register(self._membership, request)
            self._proxies.take(session.worker, request.via)
        self._expect_to_know_lives(session, request.lives)
        return self._begin(self._membership, request, session)

    def _expect_to_know_lives(self, session: Session, lives: Sequence[int]) -> None:
        """A worker that does not know of a server's return would push past it.

        Asked when the session is there: a server that comes back waits for those that are.
        """
        known = zip(self._core.lives(), lives, strict=False)
        behind = [server for server, (ours, theirs) in enumerate(known) if ours > theirs]
        if self._view.replicas and behind:
            reason = f"servers {behind} were lost, or came back, since the worker has asked"
            self._membership.end(session, reason)
            raise refusal.busy(f"worker {session.worker}: {reason}; ask again")

    def _expect_settled(self, request: Any) -> None:
        if request.worker < 0:  # it gets a number that is free
            return
        reason, passes = self._core.refused(request.worker, request.incarnation)
        if reason:
            raise (refusal.busy if passes else refusal.failed)(reason)

    def _expect_filled(self) -> None:
        if self._core.is_filling():
            raise refusal.busy(f"server {self._view.server} is filled from its replica at present")

    def begin_anew(self) -> None:
        """This server was lost, and comes back: what it knew is over."""
        self._membership.begin_anew("the server was lost, and comes back")
        self._models.forget_all()
        self._barrier.forget()
        if self._settlement is not None:
            self._settlement.forget()

    def _register(self, members: Membership, request: Any) -> Session:
        return members.register(request.worker, request.incarnation, request.host_name, request.via)

    def _begin(self, members: Membership, request: Any, session: Session) -> Any:
        """Meets the worker for its data connection, unless a proxy carries its data."""
        if request.via:
            get_logger().info("worker %d (%s) joined by a proxy", session.worker, session.host_name)
            return pb.RegisterReply(
                session=session.id, worker=session.worker, num_workers=self._membership.num_workers
            )
        try:
            pairing = self._pair(session.worker, request)
        except ValueError as error:
            members.end(session, str(error))
            if not request.proxy:
                members.if_newest(session, self._core.give_up)  # it may be one of a checkpoint
            # NICs without a carrier are left out, and it may come back.
            passes = not (request.nics and self._nics())
            raise (refusal.busy if passes else refusal.illegal)(str(error)) from error
        threading.Thread(
            target=self._join,
            args=(members, session, pairing, request.tree),
            name=f"dmlcomm-ps-join-{session.worker}",
            daemon=True,
        ).start()
        return pb.RegisterReply(
            session=session.id,
            worker=session.worker,
            num_workers=self._membership.num_workers,
            rails=[_rail(worker, server) for worker, server in pairing.pairs],
            first_rail=pairing.first_rail,
        )

    def JoinTree(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._proxies.join(request, _slice(request.wait_ms))

    def LeaveTree(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._proxies.leave(request.id, request.reason, request.is_cut_off)
        return pb.LeaveTreeReply()

    def Beat(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.BeatReply()

    def find(self, session_id: str) -> Session:
        """Of a worker or a proxy. Raises Refusal for a session that has ended or never was."""
        if self._below.has(session_id):
            return self._below.find(session_id)
        return self._membership.find(session_id)

    def Leave(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.session:
            session = self._membership.find(request.session)
        else:
            session = self._membership.find_client(request.worker, request.incarnation)
        if not session.via or self._proxies.leaves(session.worker, session.via, request.lost):
            self._membership.end(session, "the worker has left")
            get_logger().info("worker %d (%s) has left", session.worker, session.host_name)
        return pb.LeaveReply()

    def Verdict(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.session:
            self.find(request.session)
        elif not self._core.status()["models"]:
            raise refusal.busy("the job has no model yet: servers may be about to start")
        if self._judge is None or not self._view.replicas or request.about == self._view.server:
            raise refusal.illegal(f"server {self._view.server} judges other servers with replicas")
        reason = self._judge.reason_of_loss(request.about, request.instance, request.life)
        return pb.VerdictReply(lost=bool(reason), reason=reason)

    def ComeBack(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._expect_lives(request.lives)
        self._core.learn(request.lives)
        return pb.ComeBackReply(lives=self._core.lives()[: self._view.num_servers])

    def _expect_lives(self, lives: Sequence[int]) -> None:
        """Of the servers that there are, and only where these have replicas."""
        server, count = self._view.server, self._view.num_servers
        if not self._view.replicas:
            raise refusal.illegal(f"server {server} has no replicas, so no server comes back")
        if len(lives) != count or max(lives) > LAST_LIFE:
            raise refusal.illegal(
                f"server {server} expects {count} numbers up to {LAST_LIFE}, the lives of all "
                f"servers, and got {list(lives)}; do all servers have the same --servers?"
            )

    def CopyModels(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.server >= self._view.num_servers:
            raise refusal.illegal(
                f"a copy for server {request.server}: the job has {self._view.num_servers} "
                "servers, numbered from 0; do all have the same --servers?"
            )
        if self._core.lives()[request.server] != request.life or self._core.is_filling():
            raise refusal.busy(f"server {self._view.server} has no copy for this life of a server")
        live = self._membership.live_workers()
        with_values = self._models.with_values()
        # They still count here, and will not there: what they have pushed is in the copy, as
        # nothing more comes.
        gone = self._core.unsettled()
        for worker, (incarnation, *_) in gone.items():
            self._core.end_worker(worker, incarnation, "its connection has ended")
        models = [
            pb.CopiedModel(
                model=description,
                clocks={w: clock for w, clock in clocks.items() if w not in gone},
            )
            for description, clocks in with_values
        ]
        registered = self._membership.registered()
        return pb.CopyModelsReply(
            live=sorted(live - gone.keys()),
            models=models,
            registered=registered,
            settled=[
                pb.SettledWorker(worker=worker, incarnation=incarnation)
                for worker, incarnation in self._core.settled()
            ],
        )

    def CopyPieces(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            pieces, following = self._core.copy(
                request.model, request.shard, request.first, COPY_BYTES
            )
        except ValueError as error:
            raise refusal.not_found(str(error)) from error
        return pb.CopyPiecesReply(pieces=pieces, next=following)

    def Settle(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._settlement is None:
            raise refusal.illegal(
                f"server {self._view.server} has no replicas, and settles nothing"
            )
        return self._settlement.answer(request)

    def Barrier(self, request: Any, context: Any) -> Any:  # noqa: N802
        session = self._membership.find(request.session)
        if request.withdraws:
            self._barrier.withdraw(session.worker, request.ticket)
            return pb.BarrierReply()
        self._expect_filled()
        wait_s = _slice(request.wait_ms)
        passed = self._barrier.arrive(session.worker, request.ticket, wait_s)
        return pb.BarrierReply(
            passed=passed,
            missing=[] if passed else self._barrier.missing(),
            not_yet_registered=self._membership.num_missing(),
        )

    def Publish(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.find(request.session).rendezvous.set(request.key, request.value)
        return pb.PublishReply()

    def Lookup(self, request: Any, context: Any) -> Any:  # noqa: N802
        session = self.find(request.session)
        try:
            value = session.rendezvous.get(request.key, _slice(request.wait_ms))
        except RuntimeError as error:
            raise (refusal.failed if session.refusal else refusal.busy)(str(error)) from error
        return pb.LookupReply(found=value is not None, value=value or b"")

    def CreateModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        session = self._membership.find(request.session)
        self._expect_filled()
        reply = self._models.create(session, request.model, request.elect)
        reply.clock, reply.is_new = self._core.hold(reply.model, session.worker)
        self._proxies.model_is_known()
        if session.via:
            reply.base = self._proxies.base(reply.model)
            reply.reached = self._core.reached(reply.model)
        elif not self._membership.is_alive(session):
            # It counted no more, and should not now.
            self._membership.if_newest(session, self._core.give_up)
        return reply

    def SealModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._models.seal(self._membership.find(request.session), request.model)
        return pb.SealModelReply()

    def WaitModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        session = self._membership.find(request.session)
        sealed, provide, provider = self._models.wait(
            session, request.model, _slice(request.wait_ms)
        )
        return pb.WaitModelReply(sealed=sealed, provide=provide, provider=provider)

    def Restored(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._checkpoints is None:
            return pb.RestoredReply(may_go_back=True)
        return self._checkpoints.restored()

    def GoBack(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            if self._checkpoints is not None:
                self._checkpoints.go_back(request.clocks)
        except PsCheckpointError as error:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        return pb.GoBackReply()

    def Health(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._view.health()

    def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._view.status(self._membership, self._models)

    def _pair(self, worker: int, request: Any) -> Pairing:
        if request.host_id == _core.host_id():
            return NO_RAILS
        theirs = [Rail(nic.interface, nic.address, nic.prefix_length) for nic in request.nics]
        return pair(worker, theirs, self._nics())

    def _join(self, members: Membership, session: Session, pairing: Pairing, tree: int) -> None:
        rendezvous = session.rendezvous

        def get(key: str) -> bytes:
            value = rendezvous.get(key, JOIN_TIMEOUT_S)
            if value is None:
                raise TimeoutError(f'nothing published as "{key}" within {JOIN_TIMEOUT_S:g} s')
            return value

        is_proxy = members is self._below
        number = session.worker + (_core.FIRST_PROXY if is_proxy else 0)
        who = f"{'proxy' if is_proxy else 'worker'} {session.worker}"
        rails = [(server.interface, server.address) for _, server in pairing.pairs]
        try:
            self._core.join(
                *(number, rails, pairing.first_rail, rendezvous.set, get, JOIN_TIMEOUT_S),
                tree,
                self._seat,
                session.incarnation,
            )
        except Exception as error:
            reason = f"server {self._view.server} and {who} did not connect: {error}"
            get_logger().warning("%s", reason)
            if isinstance(error, ValueError):  # settings that have to be the same here and there
                members.refuse(session, reason)
            else:
                members.end(session, reason)
            if not is_proxy:
                members.if_newest(session, self._core.give_up)
            return
        session.joined = True
        how = _describe(pairing)
        get_logger().info("%s (%s) joined %s", who, session.host_name, how)


class Admission(grpc.ServerInterceptor):  # type: ignore[misc]
    """Looks at version and token before any call, and turns Refusal into the answer."""

    def __init__(self, server: int, token: str) -> None:
        self._server = server
        self._token = token

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        # Health is for load balancers, too, which know no token.
        problem = None if details.method == HEALTH else self._problem(details)

        def answer(request: Any, context: Any) -> Any:
            try:
                if problem is not None:
                    raise problem
                return handler.unary_unary(request, context)
            except Refusal as refused:
                get_logger().debug("refused %s: %s", details.method, refused)
                context.abort(refused.code, str(refused))

        return grpc.unary_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )

    def _problem(self, details: Any) -> Refusal | None:
        metadata = dict(details.invocation_metadata)
        version = metadata.get(PROTOCOL_KEY, "none")
        if version != PROTOCOL_VERSION:
            return Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"server {self._server} speaks version {PROTOCOL_VERSION} of the protocol, the "
                f"other side version {version}; use the same dmlcomm on all hosts",
            )
        token = metadata.get(TOKEN_KEY, b"").decode(errors="replace")
        if not same_token(self._token, token):
            return Refusal(grpc.StatusCode.UNAUTHENTICATED, self._wrong_token(token))
        return None

    def _wrong_token(self, shown: str) -> str:
        expected = "the job's token" if self._token else "no token"
        actual = "another one" if shown and self._token else "one" if shown else "none"
        return (
            f"server {self._server} expects {expected}, and {actual} was shown; give servers "
            f"(--token) and workers (DMLCOMM_PS_TOKEN) the same"
        )


def proxies_of(numbers: set[int]) -> set[int]:
    """Places of those that are proxies."""
    return {n - _core.FIRST_PROXY for n in numbers if n >= _core.FIRST_PROXY}


def _slice(wait_ms: int) -> float:
    return min(wait_ms / 1000, MAX_WAIT_S)


def _rail(worker: Rail, server: Rail) -> Any:
    return pb.Rail(
        worker_interface=worker.interface,
        worker_address=worker.address,
        server_interface=server.interface,
        server_address=server.address,
    )


def _describe(pairing: Pairing) -> str:
    if not pairing.pairs:
        return "on the same host"
    rails = ", ".join(f"{w.interface}-{s.interface}" for w, s in pairing.pairs)
    if pairing.first_rail == STRIPE:
        return f"striped over {rails}"
    worker, server = pairing.pairs[pairing.first_rail]
    return f"over {worker.interface}-{server.interface} of {rails}"
