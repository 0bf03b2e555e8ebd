"""The thread by which a server that was found lost comes back.

It tells the others, and their workers connect to it again. They send it all pushes from then on,
and those that no server has acknowledged yet; these wait. When all workers are there, the servers
with the other copies of its shards send these, with the numbers of the pushes that are in them. So
none is lost or counts twice.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import (
    CALL_TIMEOUT_S,
    LAST_LIFE,
    LIVENESS_INTERVAL_S,
    RETURN_INTERVAL_S,
    is_lost,
)
from dmlcomm.ps.server.membership import Membership
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.mutual_loss import MutualLoss
from dmlcomm.ps.server.peers import ANSWER_TIMEOUT_S, Peers, text_of
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.server.status import alive_workers

# Workers wait for the server meanwhile. One that hangs holds up the others no longer than that.
MEETING_TIMEOUT_S = 60.0
# After an attempt that has failed the server stays lost for so long.
REST_S = 60.0

# What ends an attempt.
MAY_PASS = (grpc.RpcError, Refusal, ValueError, RuntimeError)


class Refill:
    """Watches whether this server was found lost, and comes back then. `forget` ends what it knew.

    Args:
        server: number of this server.
        num_servers: of the job.
    """

    def __init__(
        self,
        core: _core.PsServer,
        server: int,
        num_servers: int,
        peers: Peers,
        membership: Membership,
        models: Models,
        forget: Callable[[], None],
    ) -> None:
        self._core = core
        self._server = server
        self._num_servers = num_servers
        self._peers = peers
        self._membership = membership
        self._models = models
        self._forget = forget
        # By shard that is here, the server with the other copy.
        before, after = (server - 1) % num_servers, (server + 1) % num_servers
        self._sources = {server: after, before: before}
        self._mutual_loss = MutualLoss(core, server, num_servers, peers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dmlcomm-ps-refill", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(RETURN_INTERVAL_S):
            if self._life() == LAST_LIFE:
                return self._stay_lost()
            if self._peers.addresses:
                self._look()

    def _look(self) -> None:
        if not self._core.is_filling():
            self._ask_others()
        if is_lost(self._life()):
            if not all(map(self._has_copy, set(self._sources.values()))):
                return
            get_logger().warning("server %d was found lost, and comes back", self._server)
            self._forget()
            self._core.come_back(self._life())
        if self._core.is_filling():
            life = self._life()
            try:
                self._fill(life)
            except MAY_PASS as error:
                self._give_up(life, text_of(error))

    def _life(self) -> int:
        return int(self._core.lives()[self._server])

    def _stay_lost(self) -> None:
        get_logger().error(
            "server %d was lost for the %dth time and stays lost: it can come back %d times in a "
            "job. The others go on with the other copies of its part; before another one is lost, "
            "save the weights, and start all servers and the job anew",
            *(self._server, LAST_LIFE // 2 + 1, LAST_LIFE // 2),
        )

    def _is_lost(self, server: int) -> bool:
        return is_lost(self._core.lives()[server])

    def _has_copy(self, source: int) -> bool:
        """Asked before this server forgets its own, which may be the last one."""
        if self._is_lost(source):
            return False
        try:
            health = self._peers.health(source)
            if is_lost(health.lives[source]) or health.is_filling:
                return False
            own = {description.name for description, _ in self._models.with_values()}
            return not self._mutual_loss.lose_if_anew(source, own)
        except grpc.RpcError:
            return False

    def _all_others(self) -> list[int]:
        """The next one first."""
        return [(self._server + i) % self._num_servers for i in range(1, self._num_servers)]

    def _others(self) -> list[int]:
        """Those that are not lost."""
        return [other for other in self._all_others() if not self._is_lost(other)]

    def _ask_others(self) -> None:
        """Whether this server is lost. Workers that are connected would tell, but of no other
        server that they have lost."""
        for other in self._all_others():
            if self._is_lost(other):
                with contextlib.suppress(grpc.RpcError):
                    self._mutual_loss.settle_with(other)
        if alive_workers(self._core.status()) and not is_lost(self._life()):
            return
        for other in self._others():
            try:
                health = self._peers.health(other)
            except grpc.RpcError:
                continue
            self._core.learn(health.lives)
            return

    def _fill(self, life: int) -> None:
        """Returns early if this server closes, or was found lost again. Raises one of MAY_PASS."""
        begin = time.monotonic()
        self._announce()
        replies = {source: self._meet(source, life) for source in set(self._sources.values())}
        if any(reply is None for reply in replies.values()):
            return
        for reply in replies.values():
            self._core.take_settled({(one.worker, one.incarnation) for one in reply.settled})
        for description in _in_all(replies.values()):
            self._copy(description, replies)
        for reply in replies.values():
            self._membership.note_registered(reply.registered)
        if self._life() == life:
            self._core.filled()
            get_logger().warning(
                "server %d is back: filled from servers %s within %.1f s",
                *(self._server, sorted(replies), time.monotonic() - begin),
            )

    def _announce(self) -> None:
        """Tells the others. Those that do not answer hear of it by workers, or refuse a copy."""
        for other in self._others():
            with contextlib.suppress(grpc.RpcError), self._peers.calling(other) as call:
                request = pb.ComeBackRequest(lives=self._core.lives()[: self._num_servers])
                self._core.learn(call("ComeBack", request, ANSWER_TIMEOUT_S).lives)

    def _meet(self, source: int, life: int) -> Any:
        """What the source has, once all of its workers send here, too; None: see `_fill`.

        A worker asks for no model of which this reply does not tell: when it was given, the worker
        was here already, and from then on a model is made on this server, too.
        """
        deadline = time.monotonic() + MEETING_TIMEOUT_S
        request = pb.CopyModelsRequest(server=self._server, life=life)
        with self._peers.calling(source) as call:
            while self._life() == life:
                here = set(self._core.begun())
                reply = call("CopyModels", request, CALL_TIMEOUT_S)
                missing = set(reply.live) - here
                if not missing:
                    return reply
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"workers {sorted(missing)} have not connected to it within "
                        f"{MEETING_TIMEOUT_S:g} s"
                    )
                if self._stop.wait(LIVENESS_INTERVAL_S):
                    break
        return None

    def _give_up(self, life: int, reason: str) -> None:
        """Workers go on without this server."""
        get_logger().error(
            "server %d cannot come back: %s; it tries again in %g s",
            *(self._server, reason, REST_S),
        )
        self._core.lose(self._server, life)
        self._announce()
        self._stop.wait(REST_S)

    def _copy(self, description: Any, replies: dict[int, Any]) -> None:
        number = self._models.create_empty(description)
        for shard, source in self._sources.items():
            with self._peers.calling(source) as call:
                first, following = -1, 0
                while following > first:
                    first = following
                    request = pb.CopyPiecesRequest(model=number, shard=shard, first=first)
                    reply = call("CopyPieces", request, CALL_TIMEOUT_S)
                    self._core.take_copy(number, shard, reply.pieces)
                    following = reply.next
        self._core.end_fill(number, _clocks(description, replies.values()))


def _in_all(replies: Iterable[Any]) -> list[Any]:
    """Models with values on all of these servers; others are made at present."""
    first, *others = ({m.model.name: m.model for m in reply.models} for reply in replies)
    return [model for name, model in first.items() if all(name in other for other in others)]


def _clocks(description: Any, replies: Iterable[Any]) -> dict[int, int]:
    """Of the workers of a model: where servers differ, the smaller one is safe."""
    clocks: dict[int, int] = {}
    for reply in replies:
        (copied,) = (m for m in reply.models if m.model.name == description.name)
        for worker, clock in copied.clocks.items():
            clocks[worker] = min(clock, clocks.get(worker, clock))
    return clocks
