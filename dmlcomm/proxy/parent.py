"""A node's way to its parent: finding it, connecting, and making models known there."""

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.proxy.models import NodeModels
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    WAIT_SLICE_S,
    model_number,
)
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.worker.backoff import Backoff
from dmlcomm.ps.worker.connections import CONNECT_TIMEOUT_S, own_nics
from dmlcomm.ps.worker.control import Control, UnknownSessionError

# A parent that is a proxy, and does not connect in this time, is not reached.
EDGE_TIMEOUT_S = 10.0

# The caller finds another way.
_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Parent:
    """The server, or the node of another proxy; known once the server has fixed the tree."""

    def __init__(
        self,
        root: Control,
        token: str,
        uplink: _core.ProxyUplink,
        core: _core.PsServer,
        models: NodeModels,
        seat: _core.JobSeat,
        on_failure: Callable[[], None],
    ) -> None:
        """`on_failure`: called once `failure` is not empty, from any thread."""
        self._root = root
        self._token = token
        self._uplink = uplink
        self._core = core
        self._models = models
        self._seat = seat
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._control: Control | None = None
        self._session = ""
        self._incarnation = secrets.randbits(63)
        self._failure = ""
        self._closed = threading.Event()
        self._answered: float | None = None  # when the parent, a proxy, was last heard
        self._has_no_way = False  # for data
        self.place: Any = None  # JoinTreeReply
        self.since: float | None = None  # when it was connected to, by time.monotonic()

    def failure(self) -> str:
        """Why this node cannot go on; empty while it can."""
        try:
            self._uplink.check()
        except ConnectionError as error:
            self._fail(str(error))
        if self._core.has_lost_proxy():
            self._fail("a proxy below it was lost")
        return self._failure

    def is_cut_off(self) -> bool:
        """Whether the parent, a proxy, was not to be connected to, or does not answer heartbeats.

        Nodes of a process end together: the first one that has waited long enough says so to its
        server, and this tells the other servers at once.
        """
        answered = self._answered
        if self._has_no_way:
            return True
        return answered is not None and time.monotonic() - answered > HEARTBEAT_TIMEOUT_S / 2

    def check(self) -> None:
        """Raises Refusal once the node cannot go on."""
        if self.failure():
            raise Refusal(_UNAVAILABLE, f"this node of the proxy has ended: {self._failure}")

    def expect_tree(self, number: int) -> None:
        """Raises Refusal unless the node has a place in this tree."""
        if self.place is None or self.place.tree != number:
            raise Refusal(_UNAVAILABLE, f"this node of the proxy is not in tree {number}")

    def close(self) -> None:
        self._closed.set()
        # Those below do not wait for the end of a parent that is stopped.
        self._core.close()
        self._uplink.close()
        if self._control is not None:
            self._control.close()

    def take_part(self, request: Any) -> None:
        """Shows the server that this node lives; takes its place in the tree when it is known.

        Returns when the tree has ended.
        """
        request.first = False
        request.wait_ms = int(HEARTBEAT_INTERVAL_S * 1000)
        try:
            while not self._closed.is_set():
                reply = self._root.call("JoinTree", request, HEARTBEAT_INTERVAL_S)
                if reply.ended:
                    self._fail("the tree has ended")
                    return
                if reply.known and not request.knows_place:
                    request.knows_place = True
                    threading.Thread(target=self._settle, args=(reply,), daemon=True).start()
        except (errors.PsError, ValueError) as error:  # or this side is closed
            self._fail(f"the server does not answer: {error}")

    def create_model(self, model: Any) -> None:
        """Makes the model known to a parent that is a proxy, and it to its own. Raises Refusal."""
        with self._lock:
            control = self._control
        if control is not None and self.place.parent:
            clocks = self._models.clocks_of(model_number(model.name))
            try:
                request = pb.CreateModelRequest(session=self._session, model=model, **clocks)
                control.call("CreateModel", request)
            except errors.PsError as error:
                raise Refusal(_UNAVAILABLE, f"by its proxy: {error}") from error

    def _fail(self, why: str) -> None:
        if not self._failure and not self._closed.is_set():
            self._failure = why
            self._on_failure()
            get_logger().info("server %d: a node of the proxy ends: %s", self._root.server, why)

    def _settle(self, place: Any) -> None:
        try:
            self._connect(place)
        except (errors.PsError, Refusal, OSError, RuntimeError, ValueError) as error:
            self._fail(f"no connection to its parent: {error}")

    def _connect(self, place: Any) -> None:
        control = Control(self._root.server, place.parent or self._root.address, self._token, None)
        self.place = place
        if place.parent:
            self._answered = time.monotonic()
            threading.Thread(target=self._watch, args=(control,), daemon=True).start()
        reply = self._register_patiently(control, place)
        self._session = reply.session
        with self._lock:
            self._control = control
        # Those that come from now on are made known by create_model.
        for model in self._models.descriptions().values():
            self.create_model(model)
        self._connect_uplink(control, place, reply)
        self._core.start_up(list(place.expected))
        self.since = time.monotonic()

    def _connect_uplink(self, control: Control, place: Any, reply: Any) -> None:
        began = time.monotonic()
        limit_s = EDGE_TIMEOUT_S if place.parent else CONNECT_TIMEOUT_S
        try:
            self._uplink.connect(
                place.place,
                self._root.server,
                [(rail.worker_interface, rail.worker_address) for rail in reply.rails],
                reply.first_rail,
                lambda key, value: self._publish(control, key, value),
                lambda key: self._look_up(control, key, limit_s),
                limit_s,
                self._seat,
            )
        except BaseException:
            self._has_no_way = bool(place.parent) and time.monotonic() - began >= limit_s
            raise

    def _watch(self, control: Control) -> None:
        """Heartbeats to a parent that is a proxy. One that is silent is not reached: it may live,
        and the server knows."""
        # The time may be over because this process was stopped: then the second question tells.
        patience_s = HEARTBEAT_TIMEOUT_S - HEARTBEAT_INTERVAL_S
        while self._hears(control, patience_s) or self._hears(control, HEARTBEAT_INTERVAL_S):
            if self._closed.wait(HEARTBEAT_INTERVAL_S):
                return
        self._fail(f"its parent at {control.address} was silent for {HEARTBEAT_TIMEOUT_S:g} s")

    def _hears(self, control: Control, timeout_s: float) -> bool:
        """Whether the parent answers within the time, at the first question or a later one."""
        deadline = time.monotonic() + timeout_s
        remaining_s = timeout_s
        while remaining_s > 0:
            try:
                control.call("Beat", pb.BeatRequest(), timeout_s=remaining_s)
                self._answered = time.monotonic()
                return True
            except errors.PsError as error:
                get_logger().debug("server %d: heartbeat: %s", self._root.server, error)
            if self._closed.wait(HEARTBEAT_INTERVAL_S):
                break
            remaining_s = deadline - time.monotonic()
        return False

    def _register_patiently(self, control: Control, place: Any) -> Any:
        """The parent may not know its own place yet."""
        request = pb.RegisterRequest(
            worker=place.place,
            host_id=_core.host_id(),
            host_name=_core.host_name(),
            nics=own_nics(),
            incarnation=self._incarnation,
            proxy=True,
            tree=place.tree,
        )
        backoff = Backoff(CONNECT_TIMEOUT_S, "the parent in the tree")
        while True:
            try:
                return control.call("Register", request)
            except (errors.PsConnectionError, UnknownSessionError) as error:
                if self._closed.is_set() or self._failure:
                    raise
                backoff.wait(error)

    def _publish(self, control: Control, key: str, value: bytes) -> None:
        control.call("Publish", pb.PublishRequest(session=self._session, key=key, value=value))

    def _look_up(self, control: Control, key: str, limit_s: float) -> bytes:
        deadline = time.monotonic() + limit_s
        wait_ms = int(WAIT_SLICE_S * 1000)
        request = pb.LookupRequest(session=self._session, key=key, wait_ms=wait_ms)
        while time.monotonic() < deadline:
            reply = control.call("Lookup", request, WAIT_SLICE_S)
            if reply.found:
                return bytes(reply.value)
        raise errors.PsTimeoutError(
            f"{control.address} did not publish its side of the connection within {limit_s:g} s"
        )
