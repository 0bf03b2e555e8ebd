"""The trees of proxies below one server, one after the other."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps import tree
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.description import shard_bytes
from dmlcomm.ps.protocol import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    LIVENESS_INTERVAL_S,
    RETURN_TIMEOUT_S,
    SLEPT_S,
)
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.absences import Absences
from dmlcomm.ps.server.membership import Membership, Session
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.tree import UNKNOWN, Prices

# Workers come to a proxy that is there again at about the same time: a new tree waits so long for
# more of them.
SETTLE_S = 0.2

# A tree that a worker ends so soon was made too early: the next one waits so long after every
# worker.
BRIEF_S = 2.0

# A tree of `auto` is made anew when the largest model has so many times the bytes that the tree was
# chosen for, and another shape is cheaper.
OUTGROWN = 4

# Two proxies that did not reach each other have no edge in the trees of this time.
CUT_KEPT_S = 300.0


@dataclass
class _Proxy:
    id: str
    address: str
    host_name: str
    rack: str
    tree: int
    heard: float
    prices: Prices
    process: str
    place: int = -1
    shape: str = ""
    above: "_Proxy | None" = None  # None: the server
    expected: list[int] = field(default_factory=list)


_Nodes = list[Any]  # TreeNode of all places


class Proxies:
    """Any thread may call.

    A tree is fixed when all workers of the job have registered, with the proxies in the order of
    their smallest workers: so it is the same in every run, and so are the sums. If its shape
    depends on the sizes of models, it also waits for the first model. From then on it ends as a
    whole: when a proxy is lost, or says so; when a worker of it registers anew; when a proxy or a
    worker comes that is to be part of it; and when a model comes that is too large for its shape.
    Then the server forgets what has come by proxies and is in no version, the workers register
    again, by a proxy or themselves, and repeat that. When all have, the next tree is fixed.

    Nothing has come from a tree that is not fixed, so it can lose a proxy, whose workers register
    again. It must not end: each proxy leaves all servers when the tree of one has ended, and two
    servers could make each other end theirs for ever.
    """

    def __init__(
        self,
        core: _core.PsServer,
        server: int,
        num_servers: int,
        membership: Membership,
        below: Membership,
        models: Models,
        return_timeout_s: float = RETURN_TIMEOUT_S,
    ) -> None:
        """`below` has the sessions of the proxies in the present tree, by their places."""
        self._core = core
        self._server = server
        self._num_servers = num_servers
        self._membership = membership
        self._below = below
        self._models = models
        self._return_timeout_s = return_timeout_s
        self._changed = threading.Condition(threading.RLock())
        # All of these with the lock of _changed.
        self._tree = 0
        self._fixed = False
        self._shape = ""
        self._proxies: dict[str, _Proxy] = {}
        self._members: dict[int, str] = {}  # worker -> id of its proxy, in this tree
        self._absences = Absences(return_timeout_s)
        self._fixed_at = 0.0  # when a tree was fixed last
        self._last_arrival = 0.0  # of a worker that the next tree has to wait for
        self._was_too_early = False  # the last tree
        self._nodes: _Nodes = []  # of the tree that is fixed
        self._priced = UNKNOWN  # what its shape was chosen for
        self._bases: dict[int, int] = {}  # of models
        self._cuts: dict[frozenset[str], float] = {}  # two processes -> until when it is kept
        self._monitor: threading.Thread | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Ends every wait."""
        self._closed.set()
        with self._changed:
            self._absences.close()
            self._changed.notify_all()

    # --- workers

    @contextlib.contextmanager
    def arriving(self, request: Any) -> Iterator[None]:
        """A worker registers within this block; the tree that it was in ends before.

        Raises Refusal: the worker was given up, or its proxy is not in the tree.
        """
        worker, via = request.worker, request.via
        with self._changed:
            self._refuse_given_up(worker, request.incarnation)
            if via:
                self._expect(via)
            if self._fixed and (via or worker in self._members):
                self._end_for(worker, via)
            if via:
                self._expect(via)
            yield

    def _end_for(self, worker: int, via: str) -> None:
        address = self._proxies[via].address if via else ""
        now = time.monotonic()
        self._end(f"worker {worker} has registered anew")
        self._was_too_early = now - self._fixed_at < BRIEF_S
        if self._was_too_early:
            self._last_arrival = now
        # It is refused if its proxy was of that tree, and comes again: the next tree waits for it,
        # as it would end that as well.
        if via and via not in self._proxies and self._membership.is_registered(worker):
            self._absences.begin(worker, address)

    def take(self, worker: int, via: str) -> None:
        """The worker has registered; within `arriving`."""
        was_awaited = self._absences.end(worker)
        self._members.pop(worker, None)
        if via:
            self._members[worker] = via
            self._core.carry(worker)
            if self._was_too_early or (self._tree > 0 and not was_awaited):
                self._last_arrival = time.monotonic()
        self._changed.notify_all()

    def leaves(self, worker: int, via: str, lost: bool) -> bool:
        """A carried worker has left, or its proxy says so (`lost`); whether that counts."""
        with self._changed:
            if lost and self._members.get(worker) != via:
                return False  # it has come by another way meanwhile, or is about to
            # In a tree that is fixed the proxy tells this after the last pushes of the worker.
            if self._absences.end(worker) or not self._fixed:
                self._core.give_up(worker)
                self._members.pop(worker, None)
            self._changed.notify_all()
            return True

    def model_is_known(self) -> None:
        """The tree may have waited for one, or be of a shape for smaller ones."""
        with self._changed:
            if self._fixed and self._is_outgrown():
                self._end("its shape is for smaller models")
            self._changed.notify_all()

    def base(self, model: int) -> int:
        """All pieces contain all clocks before it, also those that proxies above have by now."""
        with self._changed:
            version = self._core.version(model)
            return version if self._fixed else self._bases.setdefault(model, version)

    def _refuse_given_up(self, worker: int, incarnation: int) -> None:
        if self._membership.was_carried(worker, incarnation) and worker in self._core.gone():
            raise refusal.failed(
                f"server {self._server} has taken worker {worker} for lost: it did not come back "
                f"within {self._return_timeout_s:g} s after its proxy was lost, its host did not "
                f"answer, or its proxy has lost it. The others went on, maybe without its last "
                f"pushes; start this worker anew"
            )

    def _expect(self, proxy: str) -> None:
        if proxy not in self._proxies:
            raise refusal.not_found(
                f"server {self._server} does not know the proxy that carries this worker's data: "
                f"its tree has ended, or the server was started again"
            )

    # --- proxies

    def join(self, request: Any, wait_s: float) -> Any:
        """Takes the proxy in, or hears that it lives; waits for its parent, or for the tree's end.

        Raises Refusal.
        """
        deadline = time.monotonic() + wait_s
        with self._changed:
            if request.first:
                self._take_in(request)
            if request.id in self._proxies:
                self._proxies[request.id].heard = time.monotonic()
            while True:
                proxy = self._proxies.get(request.id)
                if proxy is None:
                    return pb.JoinTreeReply(ended=True)
                if self._may_be_fixed():
                    self._fix()
                is_news = not request.knows_place and proxy.place >= 0
                remaining = deadline - time.monotonic()
                if is_news or remaining <= 0 or self._closed.is_set():
                    return _answer(proxy, self._nodes if is_news else [])
                self._changed.wait(min(remaining, LIVENESS_INTERVAL_S))

    def register(self, request: Any) -> Session:
        """A session of a proxy, for its data connection. Raises Refusal: its tree has ended."""
        with self._changed:
            if not self._fixed or request.tree != self._tree:
                raise refusal.not_found(f"tree {request.tree} of server {self._server} has ended")
            return self._below.register(request.worker, request.incarnation, request.host_name)

    def leave(self, proxy_id: str, reason: str, is_cut_off: bool = False) -> None:
        """The proxy cannot go on; `is_cut_off`: its parent does not answer it."""
        with self._changed:
            proxy = self._proxies.get(proxy_id)
            if proxy is not None:
                if is_cut_off and proxy.above is not None:
                    self._note_cut(proxy, proxy.above)
                self._lose([proxy], f"has left: {reason}")

    def _note_cut(self, child: _Proxy, parent: _Proxy) -> None:
        """If the parent shows the server that it lives, it is the network between the two."""
        now = time.monotonic()
        if now - parent.heard > HEARTBEAT_TIMEOUT_S / 2:
            return
        get_logger().warning(
            "server %d: the proxies of %s and %s do not reach each other; they have no edge in the "
            "trees of the next %g s",
            *(self._server, child.host_name, parent.host_name, CUT_KEPT_S),
        )
        self._cuts = {pair: until for pair, until in self._cuts.items() if now < until}
        self._cuts[frozenset((child.process, parent.process))] = now + CUT_KEPT_S

    def _is_cut(self, one: _Proxy, other: _Proxy) -> bool:
        until = self._cuts.get(frozenset((one.process, other.process)), 0.0)
        return time.monotonic() < until

    def _lose(self, proxies: list[_Proxy], reason: str) -> None:
        in_tree = [proxy.host_name for proxy in proxies if proxy.place >= 0]
        if in_tree:
            self._end(f"the proxy of {', '.join(in_tree)} {reason}")
        else:
            for proxy in proxies:
                self._await(self._workers_of(proxy.id))
        for proxy in proxies:
            self._proxies.pop(proxy.id, None)

    def _take_in(self, request: Any) -> None:
        if request.shape not in (tree.AUTO, *tree.SHAPES):
            raise refusal.illegal(
                f'the proxy of {request.host_name} asks for a tree "{request.shape}"; expected '
                f"{', '.join((tree.AUTO, *tree.SHAPES))}"
            )
        if self._proxies and request.shape != self._shape:
            raise refusal.illegal(
                f'the proxy of {request.host_name} asks for a tree "{request.shape}", and those '
                f'before it for "{self._shape}"; start the proxies of a job with one --tree'
            )
        self._shape = request.shape
        self._proxies[request.id] = _Proxy(
            *(request.id, request.address, request.host_name, request.rack),
            # A tree that is fixed ends when the first worker comes by the new proxy.
            tree=self._tree + self._fixed,
            heard=time.monotonic(),
            prices=_prices_of(request),
            process=request.process,
        )
        self._absences.learn_whether_it_answers(request.address)
        if self._monitor is None:
            self._monitor = threading.Thread(
                target=self._watch, name="dmlcomm-ps-proxies", daemon=True
            )
            self._monitor.start()

    # --- the tree

    def _may_be_fixed(self) -> bool:
        if self._fixed or not self._members or self._absences:
            return False
        if self._shape == tree.AUTO and not self._prices().shard_bytes:
            return False
        settled = time.monotonic() - self._last_arrival >= SETTLE_S
        return settled and self._membership.num_missing() == 0

    def _fix(self) -> None:
        """Gives every proxy its place."""
        self._fixed = True
        self._fixed_at = time.monotonic()
        workers = {p.id: self._workers_of(p.id) for p in self._proxies.values()}
        proxies = sorted(
            (p for p in self._proxies.values() if workers[p.id]), key=lambda p: workers[p.id]
        )
        racks = [proxy.rack for proxy in proxies]
        shape = self._shape
        if shape == tree.AUTO:
            self._priced = self._prices()
            shape = tree.choose(racks, self._priced, self._num_servers)
        first = tree.first_of(self._server, self._num_servers, racks) if racks else 0
        places = tree.avoiding(
            tree.parents(shape, racks, first), lambda a, b: self._is_cut(proxies[a], proxies[b])
        )
        for place, proxy in enumerate(proxies):
            proxy.place = place
            proxy.shape = shape
            proxy.above = None if places[place] == tree.ROOT else proxies[places[place]]
            proxy.expected = sorted(
                worker for p in tree.below(places, place) for worker in workers[proxies[p].id]
            )
        self._nodes = [
            pb.TreeNode(
                host_name=proxy.host_name,
                rack=proxy.rack,
                parent=parent,
                workers=workers[proxy.id],
            )
            for proxy, parent in zip(proxies, places, strict=True)
        ]
        get_logger().info(
            "server %d: %d proxies in tree %d, of shape %s, %d below the server",
            *(self._server, len(proxies), self._tree, shape),
            len(tree.children_of(places, tree.ROOT)),
        )
        self._changed.notify_all()

    def _is_outgrown(self) -> bool:
        prices = self._prices()
        if self._shape != tree.AUTO or prices.shard_bytes < OUTGROWN * self._priced.shard_bytes:
            return False
        racks = [node.rack for node in self._nodes]
        before, now = (tree.choose(racks, p, self._num_servers) for p in (self._priced, prices))
        return before != now

    def _prices(self) -> Prices:
        """What the proxies have told; of models, the largest that is here if they told no size."""
        told = tree.common(proxy.prices for proxy in self._proxies.values())
        if told.shard_bytes:
            return told
        models = self._models.descriptions().values()
        return replace(told, shard_bytes=max(map(shard_bytes, models), default=0.0))

    def _workers_of(self, proxy_id: str) -> list[int]:
        return sorted(worker for worker, via in self._members.items() if via == proxy_id)

    def _end(self, reason: str) -> None:
        """Nothing comes from this tree any more when this returns."""
        get_logger().warning(
            "server %d: tree %d of proxies ends: %s", self._server, self._tree, reason
        )
        self._tree = self._core.end_tree()
        self._below.begin_anew(f"tree {self._tree - 1} of proxies has ended")
        self._await(list(self._members))
        self._proxies = {p.id: p for p in self._proxies.values() if p.tree >= self._tree}
        self._bases.clear()
        self._was_too_early = False
        self._fixed = False
        self._changed.notify_all()

    def _await(self, workers: list[int]) -> None:
        """These register again, by a proxy or themselves, or are given up."""
        gone = set(self._core.gone())
        for worker in workers:
            address = self._proxies[self._members.pop(worker)].address
            if worker in gone:
                continue
            if self._membership.is_registered(worker):
                self._absences.begin(worker, address)
            else:  # it has left, and its proxy did not come to tell that
                self._core.give_up(worker)

    # --- those that are silent

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._closed.wait(LIVENESS_INTERVAL_S):
            now = time.monotonic()
            with self._changed:
                if now - looked > SLEPT_S:
                    self._forgive(now, now - looked)
                self._end_if_lost(now)
                self._give_up_overdue(now)
            looked = time.monotonic()

    def _forgive(self, now: float, slept_s: float) -> None:
        for proxy in self._proxies.values():
            proxy.heard = now
        self._absences.forgive(slept_s)

    def _end_if_lost(self, now: float) -> None:
        silent = [p for p in self._proxies.values() if now - p.heard > HEARTBEAT_TIMEOUT_S]
        self._lose(silent, f"was silent for {HEARTBEAT_TIMEOUT_S:g} s")
        if self._fixed and self._core.has_lost_proxy():
            self._end("the connection of a proxy has ended")

    def _give_up_overdue(self, now: float) -> None:
        heard = [
            proxy.address
            for proxy in self._proxies.values()
            if now - proxy.heard < 2 * HEARTBEAT_INTERVAL_S
        ]
        for worker in self._core.gone():  # it has come by no other way, and ended
            if self._absences.end(worker):
                self._changed.notify_all()
        for worker, why in self._absences.take_overdue(heard):
            get_logger().error(
                "server %d gives worker %d up: its proxy was lost, and %s",
                *(self._server, worker, why),
            )
            self._core.give_up(worker)
            self._changed.notify_all()


def _answer(proxy: _Proxy, nodes: _Nodes) -> Any:
    return pb.JoinTreeReply(
        known=proxy.place >= 0,
        place=max(0, proxy.place),
        parent="" if proxy.above is None else proxy.above.address,
        expected=proxy.expected,
        shape=proxy.shape,
        tree=proxy.tree,
        nodes=nodes,
    )


def _prices_of(request: Any) -> Prices:
    return Prices(
        rate_bps=request.rate_bps,
        shard_bytes=request.shard_bytes,
        oversubscription=request.oversubscription,
        hop_s=request.hop_s,
    )
