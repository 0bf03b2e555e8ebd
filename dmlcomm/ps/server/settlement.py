"""What servers with replicas do when a worker has gone: they make their copies equal.

A worker that is killed in the middle of a push may have reached one of two servers. So each keeps
what a push has brought until the worker has the acknowledgements of both. A server that loses a
worker does not go on without it yet: it asks those with the other copies of its shards, which end
their connections to this worker, too, and adds what it lacks, to the clocks in which the others
have it. Then the worker counts no more. It may come again when the others have asked as well.

One that does not answer is found lost, and is filled again when it is back: copies never differ.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import CALL_TIMEOUT_S, LIVENESS_INTERVAL_S, SLEPT_S, is_lost
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.judge import Judge
from dmlcomm.ps.server.membership import MAX_WORKERS
from dmlcomm.ps.server.peers import PeersClosed, text_of

# Others wait so long for a server that does not answer; then it is lost.
HOLD_S = 10.0
# Unless no worker has shown life to the one that asks for so long: then that may be cut off itself.
WITNESS_S = HOLD_S / 2
# After a failure it is asked again so much later.
REST_S = 1.0
# How long the thread waits for a worker to go before it looks whether the server closes.
WAIT_S = 1.0
# Of one answer: as of a copy.
ANSWER_BYTES = 8 << 20
# Of one question: a server takes messages of 4 MiB, as gRPC has it.
QUESTION_BYTES = 1 << 20

Key = tuple[int, int]  # number of a worker, and its incarnation


@dataclass
class _Account:
    """Of a worker that has gone.

    Attributes:
        life: of this server, in which the worker was here. Others know if that is over.
        has_left: in good order.
        asked: servers that have nothing of it that this one lacks.
        answered: servers that have had all that this one has of it.
        is_dropped: it counts no more.
    """

    life: int
    has_left: bool
    asked: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    is_dropped: bool = False


@dataclass
class _Partner:
    """A server with other copies.

    Attributes:
        shards: that both servers have.
        hold_s: so long it may be silent.
        life: in which it was asked last.
        is_silent: it has not answered since `heard`.
        heard: the time of its last answer, or else of the first question.
        ask_at: not before this time.
        answers_by: when the last question is over, whether there is an answer or not.
    """

    server: int
    shards: list[int]
    hold_s: float
    life: int = 0
    is_silent: bool = False
    heard: float = 0.0
    ask_at: float = 0.0
    answers_by: float = 0.0


class Settlement:
    """The thread that asks, and the answers to others. Any thread may call.

    Args:
        server: number of this server.
        num_servers: of the job.
        clock: in seconds.
    """

    def __init__(
        self,
        core: _core.PsServer,
        server: int,
        num_servers: int,
        judge: Judge,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._server = server
        self._num_servers = num_servers
        self._judge = judge
        self._clock = clock
        before, after = (server - 1) % num_servers, (server + 1) % num_servers
        shards = {after: [server]}
        shards.setdefault(before, []).append(before)
        # If two servers cannot reach each other only one of them is lost: the second would wait
        # longer, and hears of it meanwhile.
        self._partners = [
            _Partner(other, shared, HOLD_S * (2 if server > other else 1))
            for other, shared in shards.items()
        ]
        self._accounts: dict[Key, _Account] = {}
        self._lock = threading.Lock()  # of accounts
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dmlcomm-ps-settle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """After the peers: their calls end then."""
        self._stop.set()
        self._changed.set()
        self._thread.join()

    def forget(self) -> None:
        """This server was lost, and what it knew is over."""
        with self._lock:
            self._accounts.clear()

    def answer(self, request: Any) -> Any:
        """To another server that has lost a worker. Raises Refusal."""
        self._expect_numbers(request)
        if self._core.lives()[request.server] != request.life:
            raise refusal.busy(f"server {request.server} was found lost, or has come back")
        key = (request.worker, request.incarnation)
        reason = "" if request.has_left else f"server {request.server} has lost this worker"
        is_open = self._core.end_worker(*key, reason)
        if request.done:
            with self._lock:
                account = self._accounts_of_gone().get(key) if is_open else None
                if account is not None:
                    account.answered.add(request.server)
                asks = account is not None and request.server not in account.asked
            self._changed.set()
            return pb.SettleReply(will_ask=asks)
        if not is_open:  # what is here may be of the next incarnation
            return pb.SettleReply(next=request.first)
        pushes, following = self._core.copy_pushes(
            *(request.model, request.shard, request.worker),
            *(request.known, request.first, ANSWER_BYTES),
        )
        return pb.SettleReply(pushes=pushes, next=following)

    def _expect_numbers(self, request: Any) -> None:
        if request.server < self._num_servers and request.worker < MAX_WORKERS:
            return
        raise refusal.illegal(
            f"server {request.server} asks for worker {request.worker}: expected a server below "
            f"{self._num_servers} and a worker below {MAX_WORKERS}; do all servers have the same "
            "--servers?"
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            gone = self._core.wait_unsettled(WAIT_S)
            self._changed.clear()
            try:
                self.attend()
            except Exception as error:  # without this thread no worker would be dropped
                get_logger().error("servers cannot settle what they have of workers: %s", error)
            if gone:
                self._changed.wait(LIVENESS_INTERVAL_S)

    def attend(self) -> None:
        """Asks those with other copies, and drops and settles workers of which all is known."""
        if self._core.is_filling() or self._is_lost(self._server):
            return
        with self._lock:
            accounts = self._accounts_of_gone()
        for key in accounts:
            self._core.end_worker(*key, "its connection has ended")
        for partner in self._partners:
            if not self._is_lost(partner.server):
                self._ask(partner, accounts)
        others = {p.server for p in self._partners if not self._is_lost(p.server)}
        for key, account in accounts.items():
            if others <= account.asked and not account.is_dropped:
                self._core.drop_settled(*key)
                account.is_dropped = True
            with self._lock:
                if others <= account.asked and others <= account.answered:
                    self._core.settle(*key)
                    self._accounts.pop(key, None)

    def _accounts_of_gone(self) -> dict[Key, _Account]:
        """With the lock. Others end: their workers live, and what was known of them is over."""
        known, self._accounts = self._accounts, {}
        for worker, (incarnation, life, has_left) in self._core.unsettled().items():
            key = (worker, incarnation)
            account = self._accounts[key] = known.get(key, _Account(life, has_left))
            account.life = life  # another one if this server is used again as it is
        return dict(self._accounts)

    def _is_lost(self, server: int) -> bool:
        return is_lost(self._core.lives()[server])

    def _ask(self, partner: _Partner, accounts: dict[Key, _Account]) -> None:
        self._meet(partner, accounts.values())
        lacking = [key for key, account in accounts.items() if partner.server not in account.asked]
        now = self._clock()
        if not lacking:
            partner.is_silent = False
        if not lacking or now < partner.ask_at:
            return
        if not partner.is_silent:
            partner.heard = now
        partner.answers_by = now
        try:
            with self._judge.peers.calling(partner.server) as call:

                def settle(request: Any) -> Any:
                    left_s = partner.heard + partner.hold_s - self._clock()
                    timeout_s = min(max(left_s, REST_S), CALL_TIMEOUT_S)
                    partner.answers_by = self._clock() + timeout_s
                    reply = call("Settle", request, timeout_s)
                    partner.is_silent, partner.heard = False, self._clock()
                    return reply

                for key in lacking:
                    will_ask = self._take_all(partner, key, accounts[key], settle)
                    with self._lock:
                        accounts[key].asked.add(partner.server)
                        if not will_ask:
                            accounts[key].answered.add(partner.server)
        except PeersClosed:
            pass
        except Exception as error:
            self._note_silence(partner, error)

    def _meet(self, partner: _Partner, accounts: Iterable[_Account]) -> None:
        """One that has come back has begun anew, and so do questions."""
        life = self._core.lives()[partner.server]
        if life == partner.life:
            return
        partner.life, partner.is_silent, partner.ask_at = life, False, 0.0
        with self._lock:
            for account in accounts:
                account.asked.discard(partner.server)
                account.answered.discard(partner.server)

    def _note_silence(self, partner: _Partner, error: Exception) -> None:
        if not partner.is_silent:
            get_logger().warning(
                "server %d does not say what it has of workers that have gone: %s",
                *(partner.server, text_of(error)),
            )
        now = self._clock()
        partner.is_silent, partner.ask_at = True, now + REST_S
        if now - partner.answers_by > SLEPT_S:
            partner.heard = now
        if now - partner.heard < partner.hold_s or not self._has_witness():
            return
        with contextlib.suppress(Exception):
            self._core.learn(self._judge.peers.health(partner.server).lives)
        if not self._is_lost(self._server):
            reason = f"it does not say what it has of workers that have gone: {text_of(error)}"
            self._judge.lose(partner.server, partner.life, reason)

    def _has_witness(self) -> bool:
        """Whether a worker shows life; a connection that stands may be one that was cut.

        Without workers nobody waits, nor would tell this server that it is lost itself.
        """
        workers = self._core.status()["workers"]
        return any(one["connected"] and one["silent_s"] < WITNESS_S for one in workers)

    def _take_all(
        self, partner: _Partner, key: Key, account: _Account, settle: Callable[[Any], Any]
    ) -> bool:
        """All pushes that the other server has, of which this one may lack some.

        Whether the other one has yet to ask.
        """
        worker, incarnation = key
        request = pb.SettleRequest(
            server=self._server,
            life=account.life,
            worker=worker,
            incarnation=incarnation,
            has_left=account.has_left,
        )
        for model in self._core.status()["models"]:
            for shard in partner.shards:
                request.model, request.shard = model["model"], shard
                first, following = -1, 0
                while following > first:
                    request.first = first = following
                    request.known = self._core.known_pushes(
                        *(request.model, shard, worker, first, QUESTION_BYTES)
                    )
                    reply = settle(request)
                    self._core.take_pushes(request.model, shard, worker, reply.pushes)
                    following = reply.next
        request.done, request.known = True, b""
        return bool(settle(request).will_ask)
