"""The calls that workers and other proxies make to a node. The server answers what is of the job.

Data go from node to node along the tree. Calls go to the server at once: they are few and small.
"""

from typing import Any

import grpc

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.proxy.models import NodeModels
from dmlcomm.proxy.parent import Parent
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import model_number
from dmlcomm.ps.server.membership import Membership, Session
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.server.service import Service
from dmlcomm.ps.worker.control import Control, NumberTakenError, UnknownSessionError

Code = grpc.StatusCode
_CODES: list[tuple[type[errors.PsError], Any]] = [
    (UnknownSessionError, Code.NOT_FOUND),
    (NumberTakenError, Code.ALREADY_EXISTS),
    (errors.PsModelError, Code.INVALID_ARGUMENT),
    (errors.PsRefusedError, Code.FAILED_PRECONDITION),
    (errors.PsTimeoutError, Code.DEADLINE_EXCEEDED),
    (errors.PsConnectionError, Code.UNAVAILABLE),
]


class NodeService(Service):
    """A node is a server to those below: it keeps sessions of its own, and models without rules."""

    def __init__(
        self,
        *parts: Any,
        membership: Membership,
        root: Control,
        parent: Parent,
        own_id: str,
        seat: _core.JobSeat,
    ) -> None:
        core, view, models, nics = parts
        super().__init__(core, view, membership, models, nics, seat=seat)
        self._members = membership
        self._node_models: NodeModels = models
        self._root = root
        self._parent = parent
        self._id = own_id
        self._at_root: dict[str, str] = {}  # session here -> session with the server
        self._ends = False

    def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._parent.check()
        if request.proxy:
            self._parent.expect_tree(request.tree)
            request.tree = 0  # a node is of one tree only
            return self._begin(self._below, request, self._register(self._below, request))
        carried = pb.RegisterRequest(
            worker=request.worker,
            incarnation=request.incarnation,
            host_name=request.host_name,
            via=self._id,
        )
        there = self._ask("Register", carried)
        request.worker = there.worker
        reply = super().Register(request, context)
        self._at_root[reply.session] = there.session
        return reply

    def Leave(self, request: Any, context: Any) -> Any:  # noqa: N802
        reply = super().Leave(request, context)
        self._leave(request.session)
        return reply

    def end(self) -> None:
        """No worker is told to be lost from now on."""
        self._ends = True

    def drop_lost(self) -> None:
        """Workers that have gone leave the job."""
        gone = set(self._core.gone())
        if self._ends:  # workers of a node that ends are not lost: they come by another way
            return
        for session_id in list(self._at_root):
            try:
                session = self._members.find(session_id)
            except Refusal:  # replaced, or left
                self._at_root.pop(session_id, None)
                continue
            if session.joined and session.worker in gone:
                self._members.end(session, "the worker is lost")
                self._leave(session_id, lost=True)

    def _leave(self, session_id: str, lost: bool = False) -> None:
        there = self._at_root.pop(session_id, None)
        if there is None:
            return
        try:
            self._ask("Leave", pb.LeaveRequest(session=there, lost=lost))
        except Refusal as error:
            get_logger().debug("a worker leaves: %s", error)

    def Barrier(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._ask_for_worker("Barrier", request)

    def CreateModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        session = self.find(request.session)
        self._node_models.check(request.model)
        number = model_number(request.model.name)
        reply = None
        if not self._is_proxy(session):
            reply = self._ask_for_worker("CreateModel", request)
        told = reply or request
        self._node_models.learn(number, told.base, told.reached)
        here = self._models.create(session, request.model, False)
        self._node_models.show_own(number, request.model)
        self._parent.create_model(request.model)
        if reply is None:
            return here
        if reply.sealed:
            self._core.fetch_values(number)
        return reply

    def SealModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        reply = self._ask_for_worker("SealModel", request)
        self._core.seal(request.model)
        return reply

    def WaitModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._ask_for_worker("WaitModel", request)

    def JoinTree(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise Refusal(
            Code.FAILED_PRECONDITION,
            "this is a proxy, and proxies do not take the place of servers for others; give "
            "workers the addresses of the servers (DMLCOMM_PS_SERVERS)",
        )

    def Restored(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._ask("Restored", request)

    def GoBack(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._ask("GoBack", request)

    def LeaveTree(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.JoinTree(request, context)

    def Health(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._ask("Health", request)

    def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._ask("Status", request)

    def _is_proxy(self, session: Session) -> bool:
        return session.id not in self._at_root

    def _ask_for_worker(self, name: str, request: Any) -> Any:
        there = self._at_root.get(request.session)
        if there is None:
            raise Refusal(Code.NOT_FOUND, "this proxy does not know the session; register again")
        request.session = there
        return self._ask(name, request)

    def _ask(self, name: str, request: Any) -> Any:
        wait_s = getattr(request, "wait_ms", 0) / 1000
        try:
            return self._root.call(name, request, wait_s)
        except errors.PsError as error:
            kind = next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL)
            raise Refusal(kind, f"by its proxy: {error}") from error
