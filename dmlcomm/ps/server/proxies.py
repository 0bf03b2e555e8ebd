"""The tree of proxies below one server."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from dmlcomm.log import get_logger
from dmlcomm.ps import tree
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import LIVENESS_INTERVAL_S
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.membership import Membership


@dataclass
class _Proxy:
    id: str
    address: str
    host_name: str
    rack: str
    place: int = -1
    parent: str = ""
    expected: list[int] = field(default_factory=list)


class Proxies:
    """Any thread may call.

    The tree is fixed when all workers of the job have registered, with the proxies in the order of
    their smallest workers: so it is the same in every run, and so are the sums. A proxy that comes
    later is a leaf below the server.
    """

    def __init__(self, server: int, membership: Membership) -> None:
        self._server = server
        self._membership = membership
        self._lock = threading.Lock()
        self._proxies: dict[str, _Proxy] = {}
        self._shape = ""
        self._fixed = False
        self._closed = threading.Event()

    def close(self) -> None:
        """Ends every wait."""
        self._closed.set()

    def expect(self, proxy: str) -> None:
        """Raises Refusal unless the proxy has joined."""
        with self._lock:
            known = proxy in self._proxies
        if not known:
            raise refusal.not_found(
                f"server {self._server} does not know the proxy that carries this worker's data; "
                f"was the server started again? Start the job anew"
            )

    def join(self, request: Any, wait_s: float) -> Any:
        """Takes the proxy in, and waits for its parent. Raises Refusal."""
        with self._lock:
            self._take_in(request)
        deadline = time.monotonic() + wait_s
        while True:
            with self._lock:
                if not self._fixed and self._membership.num_missing() == 0:
                    self._fix()
                proxy = self._proxies[request.id]
                if self._fixed:
                    return self._answer(proxy)
            if time.monotonic() >= deadline or self._closed.wait(LIVENESS_INTERVAL_S):
                return pb.JoinTreeReply(known=False)

    def _take_in(self, request: Any) -> None:
        if request.id in self._proxies:
            return
        if request.shape not in (tree.AUTO, *tree.SHAPES):
            raise refusal.illegal(
                f'the proxy of {request.host_name} asks for a tree "{request.shape}"; expected '
                f"{', '.join((tree.AUTO, *tree.SHAPES))}"
            )
        if self._shape and request.shape != self._shape:
            raise refusal.illegal(
                f'the proxy of {request.host_name} asks for a tree "{request.shape}", and those '
                f'before it for "{self._shape}"; start the proxies of a job with one --tree'
            )
        self._shape = request.shape
        self._proxies[request.id] = _Proxy(
            request.id, request.address, request.host_name, request.rack
        )

    def _fix(self) -> None:
        """With the lock: gives every proxy its place."""
        self._fixed = True
        workers = {p.id: self._membership.workers_via(p.id) for p in self._proxies.values()}
        proxies = sorted(
            (p for p in self._proxies.values() if workers[p.id]), key=lambda p: workers[p.id]
        )
        racks = [proxy.rack for proxy in proxies]
        shape = tree.choose(racks) if self._shape == tree.AUTO else self._shape
        places = tree.parents(shape, racks, self._server % max(1, len(racks)))
        for place, proxy in enumerate(proxies):
            proxy.place = place
            proxy.parent = "" if places[place] == tree.ROOT else proxies[places[place]].address
            proxy.expected = sorted(
                worker for p in tree.below(places, place) for worker in workers[proxies[p].id]
            )
        get_logger().info(
            "server %d: %d proxies in a tree of shape %s, %d below the server",
            self._server,
            len(proxies),
            shape,
            len(tree.children_of(places, tree.ROOT)),
        )
        self._shape = shape

    def _answer(self, proxy: _Proxy) -> Any:
        if proxy.place < 0:  # it came later
            proxy.place = 1 + max(p.place for p in self._proxies.values())
        return pb.JoinTreeReply(
            known=True,
            place=proxy.place,
            parent=proxy.parent,
            expected=proxy.expected,
            shape=self._shape,
        )
