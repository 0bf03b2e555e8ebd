"""A node's way to its parent: finding it, connecting, and making models known there."""

import secrets
import threading
import time
from typing import Any

import grpc

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import WAIT_SLICE_S
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.worker.connections import CONNECT_TIMEOUT_S, own_nics
from dmlcomm.ps.worker.control import Control

_FAILED = grpc.StatusCode.FAILED_PRECONDITION


class Parent:
    """The server, or the node of another proxy; known once the server has fixed the tree."""

    def __init__(
        self,
        root: Control,
        token: str,
        uplink: _core.ProxyUplink,
        core: _core.PsServer,
        models: Models,
    ) -> None:
        self._root = root
        self._token = token
        self._uplink = uplink
        self._core = core
        self._models = models
        self._lock = threading.Lock()
        self._control: Control | None = None
        self._session = ""
        self._incarnation = secrets.randbits(63)
        self._failure = ""
        self._closed = threading.Event()
        self.place: Any = None  # JoinTreeReply

    def check(self) -> None:
        """Raises Refusal once the parent is lost, or could not be reached."""
        try:
            self._uplink.check()
        except ConnectionError as error:
            self._failure = self._failure or str(error)
        if self._failure:
            raise Refusal(_FAILED, f"{self._failure}; start the job anew")

    def close(self) -> None:
        self._closed.set()
        self._uplink.close()
        if self._control is not None:
            self._control.close()

    def find(self, request: Any) -> None:
        """Waits for the place in the tree, connects, and lets windows go up."""
        try:
            while self.place is None and not self._closed.is_set():
                request.wait_ms = int(WAIT_SLICE_S * 1000)
                reply = self._root.call("JoinTree", request, WAIT_SLICE_S)
                if reply.known:
                    self._connect(reply)
        except (errors.PsError, OSError, RuntimeError) as error:
            if self._closed.is_set():
                return
            self._failure = f"the proxy of this host has no parent: {error}"
            get_logger().error("%s", self._failure)

    def create_model(self, model: Any) -> None:
        """Makes a model known to a parent that is a proxy, and it to its own. Raises Refusal."""
        with self._lock:
            control = self._control
        if control is not None and self.place.parent:
            try:
                request = pb.CreateModelRequest(session=self._session, model=model)
                control.call("CreateModel", request)
            except errors.PsError as error:
                raise Refusal(_FAILED, f"by its proxy: {error}") from error

    def _connect(self, place: Any) -> None:
        control = Control(self._root.server, place.parent or self._root.address, self._token, None)
        reply = control.call(
            "Register",
            pb.RegisterRequest(
                worker=place.place,
                host_id=_core.host_id(),
                host_name=_core.host_name(),
                nics=own_nics(),
                incarnation=self._incarnation,
                proxy=True,
            ),
        )
        self._session = reply.session
        self.place = place
        with self._lock:
            self._control = control
        # Those that come from now on are made known by create_model.
        for model in self._models.descriptions().values():
            self.create_model(model)
        self._uplink.connect(
            place.place,
            self._root.server,
            [(rail.worker_interface, rail.worker_address) for rail in reply.rails],
            reply.first_rail,
            lambda key, value: self._publish(control, key, value),
            lambda key: self._look_up(control, key),
            CONNECT_TIMEOUT_S,
        )
        self._core.start_up(list(place.expected))

    def _publish(self, control: Control, key: str, value: bytes) -> None:
        control.call("Publish", pb.PublishRequest(session=self._session, key=key, value=value))

    def _look_up(self, control: Control, key: str) -> bytes:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        wait_ms = int(WAIT_SLICE_S * 1000)
        request = pb.LookupRequest(session=self._session, key=key, wait_ms=wait_ms)
        while time.monotonic() < deadline:
            reply = control.call("Lookup", request, WAIT_SLICE_S)
            if reply.found:
                return bytes(reply.value)
        raise errors.PsTimeoutError(
            f"{control.address} did not publish its side of the connection within "
            f"{CONNECT_TIMEOUT_S:g} s"
        )
