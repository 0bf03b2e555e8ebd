"""What servers with replicas do when a worker has gone: they make their copies equal.

A worker that is killed in the middle of a push may have reached one of two servers. So each keeps
what a push has brought until the worker has the acknowledgements of both. A server that loses a
worker does not go on without it yet: it asks those with the other copies of its shards, which end
their connections to this worker, too, and adds what it lacks, to the clocks in which the others
have it. Then the worker counts no more. It may come again when the others have asked as well.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import CALL_TIMEOUT_S, LIVENESS_INTERVAL_S, is_lost
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.peers import Call, Peers

# A server that neither answers nor is found lost holds the others up for about so long. What it has
# of the worker is added when it answers, to a later clock.
HOLD_S = 10.0
# How long the thread waits for a worker to go before it looks whether the server closes.
WAIT_S = 1.0
# Of one answer: as of a copy.
ANSWER_BYTES = 8 << 20


@dataclass
class _Account:
    """Of a worker that has gone.

    Attributes:
        asked: servers that have nothing of it that this one lacks.
        answered: servers that have had all that this one has of it.
        is_dropped: it counts no more.
    """

    worker: int
    incarnation: int
    since: float = field(default_factory=time.monotonic)
    asked: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    is_dropped: bool = False


class Settlement:
    """The thread that asks, and the answers to others. Any thread may call.

    Args:
        server: number of this server.
        num_servers: of the job.
    """

    def __init__(self, core: _core.PsServer, server: int, num_servers: int, peers: Peers) -> None:
        self._core = core
        self._server = server
        self._peers = peers
        before, after = (server - 1) % num_servers, (server + 1) % num_servers
        # Shards that are here, by the server with the other copy.
        self._shared: dict[int, list[int]] = {after: [server]}
        self._shared.setdefault(before, []).append(before)
        self._accounts: dict[tuple[int, int], _Account] = {}
        self._lock = threading.Lock()  # of accounts
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dmlcomm-ps-settle", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._changed.set()
        self._thread.join()

    def forget(self) -> None:
        """This server was lost, and what it knew is over."""
        with self._lock:
            self._accounts.clear()

    def answer(self, request: Any) -> Any:
        """To another server that has lost a worker. Raises Refusal."""
        if self._core.lives()[request.server] != request.life:
            raise refusal.busy(f"server {request.server} was found lost, or has come back")
        key = (request.worker, request.incarnation)
        reason = f"server {request.server} has lost this worker"
        is_open = self._core.end_worker(*key, reason)
        if request.done:
            with self._lock:
                if is_open:
                    self._account(*key).answered.add(request.server)
                asks = is_open and request.server not in self._account(*key).asked
            self._changed.set()
            return pb.SettleReply(will_ask=asks)
        pushes, following = self._core.copy_pushes(
            request.model, request.shard, request.worker, request.first, ANSWER_BYTES
        )
        return pb.SettleReply(pushes=pushes, next=following)

    def _account(self, worker: int, incarnation: int) -> _Account:
        """With the lock."""
        return self._accounts.setdefault((worker, incarnation), _Account(worker, incarnation))

    def _run(self) -> None:
        while not self._stop.is_set():
            gone = self._core.wait_unsettled(WAIT_S)
            self._changed.clear()
            for worker, (incarnation, life) in gone.items():
                with self._lock:
                    account = self._account(worker, incarnation)
                if not self._core.is_filling():
                    self._attend(account, life)
            if gone:
                self._changed.wait(LIVENESS_INTERVAL_S)

    def _is_lost(self, server: int) -> bool:
        return is_lost(self._core.lives()[server])

    def _attend(self, account: _Account, life: int) -> None:
        """`life`: of this server, in which the worker was here. Others know if that is over."""
        who = (account.worker, account.incarnation)
        self._core.end_worker(*who, "its connection has ended")
        for other in self._shared:
            if other not in account.asked and not self._is_lost(other):
                self._ask(other, account, life)
        others = {other for other in self._shared if not self._is_lost(other)}
        is_late = time.monotonic() - account.since > HOLD_S
        if (others <= account.asked or is_late) and not account.is_dropped:
            if not others <= account.asked:
                get_logger().error(
                    "servers %s do not say what they have of worker %d, which has gone; the others "
                    "go on, and the copies of their shards may differ until they answer",
                    *(sorted(others - account.asked), account.worker),
                )
            self._core.drop_settled(*who)
            account.is_dropped = True
        with self._lock:
            if others <= account.asked and others <= account.answered:
                self._core.settle(*who)
                self._accounts.pop(who, None)

    def _ask(self, other: int, account: _Account, life: int) -> None:
        """Takes what the other server has more of the worker. After a failure it is asked again."""
        request = pb.SettleRequest(
            server=self._server,
            life=life,
            worker=account.worker,
            incarnation=account.incarnation,
        )
        try:
            with self._peers.calling(other) as call:
                for model in self._core.status()["models"]:
                    for shard in self._shared[other]:
                        self._take(call, request, model["model"], shard)
                request.done = True
                reply = call("Settle", request, CALL_TIMEOUT_S)
        except Exception as error:  # without this thread no worker that has gone would be dropped
            get_logger().info(
                "server %d does not say what it has of worker %d: %s",
                *(other, account.worker, error),
            )
            return
        with self._lock:
            account.asked.add(other)
            if not reply.will_ask:
                account.answered.add(other)

    def _take(self, call: Call, request: Any, model: int, shard: int) -> None:
        """All pushes to a shard that the other server has, of which this one may lack some."""
        request.model, request.shard = model, shard
        first, following = -1, 0
        while following > first:
            request.first = first = following
            reply = call("Settle", request, CALL_TIMEOUT_S)
            self._core.take_pushes(model, shard, request.worker, reply.pushes)
            following = reply.next
