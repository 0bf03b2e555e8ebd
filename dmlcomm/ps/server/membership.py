"""Membership: the sessions of one server, and which workers are alive."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dmlcomm.log import get_logger
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.rendezvous import Rendezvous

MAX_WORKERS = 4096
DEFAULT_REJOIN_TIMEOUT_S = 60.0
# A worker that has gone may come back with its number for so long; then another may get it.
NUMBER_KEPT_S = 300.0


@dataclass
class Session:
    """One registration of one worker; a worker that registers again gets a new one.

    Attributes:
        joined: its data connection stands, so the core knows whether it is alive.
        ended: it has left, has failed to connect, or was replaced.
        gone_since: the monotonic time at which it was first found to be dead; None: it was not.
        via: id of the proxy that carries its data; empty: it has its own connection.
        refusal: why no connection can come of it, however often it is tried; empty: one may.
    """

    id: str
    worker: int
    incarnation: int
    host_name: str
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    joined: bool = False
    ended: bool = False
    gone_since: float | None = None
    via: str = ""
    refusal: str = ""


class Membership:
    """The sessions. Any thread may call. More workers may come than `num_workers`."""

    def __init__(
        self,
        num_workers: int,
        alive_workers: Callable[[], set[int]],
        rejoin_timeout_s: float = DEFAULT_REJOIN_TIMEOUT_S,
        gone_workers: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._gone_workers = gone_workers
        self.num_workers = num_workers
        self.rejoin_timeout_s = rejoin_timeout_s
        self._alive_workers = alive_workers
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._newest: dict[int, Session] = {}
        self._restored: dict[int, int] = {}
        self._awaited: set[int] = set()
        self._first_came: float | None = None
        self._incarnations_at_close: dict[int, int] | None = None

    def restore(self, incarnations: Mapping[int, int], workers: Iterable[int]) -> None:
        """Takes over a checkpoint's clients, see `num_missing`, and the workers of its clocks.

        Before any worker comes.
        """
        self._restored = dict(incarnations)
        self._awaited = self._restored.keys() | set(workers)

    def take_overdue(self) -> set[int]:
        """Restored workers for which nobody should wait any longer; each is named once.

        Of a job that goes on all that have not come; of one that begins anew those that it does not
        have: for its own it waits, as every job does.
        """
        with self._lock:
            if self._first_came is None:
                return set()
            self._awaited -= self._newest.keys()
            if time.monotonic() - self._first_came < self.rejoin_timeout_s:
                return set()
            own = set() if self._goes_on() else set(range(self.num_workers))
            overdue = self._awaited - own
            self._awaited -= overdue
            for worker in overdue:
                self._restored.pop(worker, None)
            return overdue

    def incarnations(self) -> dict[int, int]:
        """Of live workers: what tells a client that connects again from another one.

        After `close`, of those that were alive then.
        """
        if self._incarnations_at_close is not None:
            return self._incarnations_at_close
        lost = self._lost_sessions()
        with self._lock:
            return {
                worker: session.incarnation
                for worker, session in self._newest.items()
                if self._is_alive(session, lost)
            }

    def register(self, worker: int, incarnation: int, host_name: str, via: str = "") -> Session:
        """A new session; the worker's old one ends. -1 gets a number that is free.

        Raises Refusal when another client has this number and is alive, or no number is free.
        """
        if not -1 <= worker < MAX_WORKERS:
            raise refusal.illegal(
                f"worker {worker} of {host_name}: expected 0 to {MAX_WORKERS - 1}, or -1 for any"
            )
        lost = self._lost_sessions()
        with self._lock:
            if worker == -1:
                worker = self._free_number(host_name, lost)
            old = self._newest.get(worker)
            if old is not None:
                if old.incarnation != incarnation and self._is_alive(old, lost):
                    raise refusal.taken(
                        f"worker {worker} of {host_name}: this number is taken by a client on "
                        f"{old.host_name}, which is alive; give every worker its own "
                        f"(DMLCOMM_PS_WORKER or RANK), or wait until the other one has ended"
                    )
                self._end(old, "the worker has registered again")
            session = Session(secrets.token_hex(16), worker, incarnation, host_name, via=via)
            if self._first_came is None:
                self._first_came = time.monotonic()
            self._sessions[session.id] = session
            self._newest[worker] = session
            return session

    def has(self, session_id: str) -> bool:
        with self._lock:
            return session_id in self._sessions

    def _free_number(self, host_name: str, lost: set[str]) -> int:
        """The first of --workers that nobody has had, else one whose worker went long ago.

        With the lock.
        """
        now = time.monotonic()
        gone: list[tuple[float, int]] = []
        for worker, session in self._newest.items():
            if self._is_alive(session, lost):
                continue
            if session.gone_since is None:
                session.gone_since = now
            gone.append((session.gone_since, worker))
        fresh = next((w for w in range(MAX_WORKERS) if w not in self._newest), MAX_WORKERS)
        if fresh < self.num_workers:
            return fresh
        since, longest_gone = min(gone, default=(now, MAX_WORKERS))
        if gone and (now - since >= NUMBER_KEPT_S or fresh == MAX_WORKERS):
            return longest_gone
        if fresh < MAX_WORKERS:
            return fresh
        raise refusal.taken(
            f"a worker of {host_name}: all {MAX_WORKERS} numbers of workers are taken by clients "
            f"that are alive; end some of them"
        )

    def find(self, session_id: str) -> Session:
        """Raises Refusal for a session that has ended or never was."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None:
                return session
            refusals = [each.refusal for each in self._newest.values() if each.id == session_id]
        if any(refusals):
            raise refusal.failed(refusals[0])
        raise refusal.not_found(
            "this server does not know the session: the server was started again, or the "
            "worker has registered or left meanwhile; register again"
        )

    def end(self, session: Session, reason: str) -> None:
        with self._lock:
            self._end(session, reason)

    def refuse(self, session: Session, reason: str) -> None:
        """As `end`, and `find` says why until the worker registers again."""
        with self._lock:
            session.refusal = reason
            self._end(session, reason)

    def begin_anew(self, reason: str) -> None:
        """All sessions end; who registers again is new."""
        with self._lock:
            for session in list(self._sessions.values()):
                self._end(session, reason)
            self._newest.clear()
            self._restored.clear()
            self._awaited.clear()

    def note_registered(self, workers: Iterable[int]) -> None:
        """Workers that have registered with other servers: those that are not here have gone."""
        with self._lock:
            for worker in workers:
                gone = Session("", worker, 0, "", ended=True, gone_since=time.monotonic())
                self._newest.setdefault(worker, gone)

    def registered(self) -> list[int]:
        """All workers that ever have."""
        with self._lock:
            return sorted(self._newest)

    def close(self) -> None:
        self._incarnations_at_close = self.incarnations()
        with self._lock:
            for session in list(self._sessions.values()):
                self._end(session, "the server closes")

    def is_alive(self, session: Session) -> bool:
        """Whether the session's worker takes part, or is about to."""
        lost = self._lost_sessions()
        with self._lock:
            return self._is_alive(session, lost)

    def if_newest(self, session: Session, act: Callable[[int], None]) -> None:
        """Calls `act` with the session's worker, unless the worker has registered again.

        It cannot register while `act` runs, which must not wait for a worker.
        """
        with self._lock:
            if self._newest.get(session.worker) is session:
                act(session.worker)

    def live_workers(self) -> set[int]:
        lost = self._lost_sessions()
        with self._lock:
            return {w for w, session in self._newest.items() if self._is_alive(session, lost)}

    def num_missing(self) -> int:
        """How many workers this server waits for that have never registered.

        Those of the job. But once a client connects again that was there before the server was
        restored, its job goes on: then those that were alive with it.
        """
        with self._lock:
            if self._goes_on():
                return len(self._restored.keys() - self._newest.keys())
            return max(0, self.num_workers - len(self._newest))

    def _goes_on(self) -> bool:
        """Whether a client is here that was there before the server was restored."""
        return any(
            self._restored.get(worker) == session.incarnation
            for worker, session in self._newest.items()
        )

    def carried(self) -> list[Session]:
        """The newest sessions of workers whose data proxies carry."""
        with self._lock:
            return [session for session in self._newest.values() if session.via]

    def was_carried(self, worker: int, incarnation: int) -> bool:
        """Whether the data of this client of the worker came by a proxy."""
        with self._lock:
            session = self._newest.get(worker)
            return bool(session and session.via and session.incarnation == incarnation)

    def is_registered(self, worker: int) -> bool:
        """Whether it has not left since it registered; it may be lost."""
        with self._lock:
            session = self._newest.get(worker)
            return session is not None and not session.ended

    def find_client(self, worker: int, incarnation: int) -> Session:
        """As `find`, of a client that has lost its session."""
        with self._lock:
            session = self._newest.get(worker)
        if session is None or session.ended or session.incarnation != incarnation:
            raise refusal.not_found(f"worker {worker} has left, or has another client")
        return session

    def host_of(self, worker: int) -> str:
        with self._lock:
            session = self._newest.get(worker)
            return session.host_name if session else ""

    def _lost_sessions(self) -> set[str]:
        """Sessions whose data connection stood, and stands no more."""
        with self._lock:
            joined = [session for session in self._newest.values() if session.joined]
            carried = [session for session in self._newest.values() if session.via]
        # Asked last: a worker that joins meanwhile is not lost.
        alive = self._alive_workers()
        gone = set(self._gone_workers()) if carried else set()
        lost = {session.id for session in joined if session.worker not in alive}
        return lost | {session.id for session in carried if session.worker in gone}

    def _is_alive(self, session: Session, lost: set[str]) -> bool:
        return not session.ended and session.id not in lost

    def _end(self, session: Session, reason: str) -> None:
        if session.ended:
            return
        session.ended = True
        session.rendezvous.fail(f"worker {session.worker}: {reason}")
        self._sessions.pop(session.id, None)
        get_logger().debug("worker %d: session ended: %s", session.worker, reason)
