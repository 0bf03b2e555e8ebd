"""The process that schedules a bridge: ``python -m dmlcomm.prio.switch.daemon SETTINGS``.

It takes every port of the bridge, looks again whenever the kernel tells of a change (a port that
comes, goes, comes back, or gets another rate), answers ``status`` and ``stop`` on an abstract Unix
socket of its network namespace, and puts everything back when it ends. `commands` starts it: its
only line of output, in JSON, says that it is ready or why not. After that it lives on by itself.
"""

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from dmlcomm.errors import SwitchError
from dmlcomm.lab.requests import Answer, RequestServer
from dmlcomm.lab.wire import Message
from dmlcomm.prio.switch import kernel
from dmlcomm.prio.switch.ask import address
from dmlcomm.prio.switch.marks import Mark
from dmlcomm.prio.switch.port import Port
from dmlcomm.prio.switch.settings import Settings

AUTOMATIC = "auto"  # as classifier: eBPF where this process may load programs, else u32

# Of rtnetlink: groups that are told of changes, and the messages that matter here.
_GROUP_LINK, _GROUP_TC = 0x1, 0x8
_MESSAGES = (16, 17, 36, 37)  # a link or a queueing discipline is new, or gone
_HEADER = struct.Struct("=IHHII")

# Changes come in bursts: one look for all that come within so long. To try a port is a change as
# well, so after each look that ends with a refused port the next one waits twice as long.
_SETTLE_S = 0.02
_MOST_DOUBLINGS = 8  # 5 s


class Daemon:
    """Schedules the ports of one bridge. Raises SwitchError; then all ports are as they were."""

    def __init__(self, settings: Settings, ip: IPRoute) -> None:
        self._settings = settings
        self._ip = ip
        self._ports: dict[int, Port] = {}
        self._refused: dict[str, str] = {}  # by name of a port: why it is not scheduled
        self._num_refusals = 0  # looks in a row that ended with refused ports
        self._look_at: float | None = None
        self._is_stopping = False
        self._wakeup, signalled = socket.socketpair()
        signalled.setblocking(False)
        signal.set_wakeup_fd(signalled.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # which wakes the selector
        self._signalled = signalled
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup, selectors.EVENT_READ, lambda _: self.stop())
        self._events = _open_events()
        self._selector.register(self._events, selectors.EVENT_READ, self._changed)
        users = {0, os.geteuid()}
        listener = _bind(settings.bridge)
        self._requests = RequestServer(self._selector, listener, users, self._answer)
        self._look()
        if self._refused or not self._ports:
            self.release_all()
            reasons = "; ".join(self._refused.values()) or f"{settings.bridge} has no ports"
            raise SwitchError(reasons)

    def serve(self) -> None:
        """Until somebody asks it to stop."""
        while not self._is_stopping:
            left = None if self._look_at is None else max(0.0, self._look_at - time.monotonic())
            for key, _ in self._selector.select(left):
                key.data(key.fileobj)
            if self._look_at is not None and time.monotonic() >= self._look_at:
                self._look_at = None
                self._look_again()

    def _look_again(self) -> None:
        try:
            self._look()
        except SwitchError:  # the bridge is gone, and all ports with it
            self.stop()
        except NetlinkError:  # something changed meanwhile
            self._look_soon()

    def stop(self) -> None:
        self._is_stopping = True

    def release_all(self) -> list[str]:
        """What the kernel has refused to put back, by port."""
        refused = (self._release(index) for index in list(self._ports))
        return [reason for reason in refused if reason]

    def num_ports(self) -> int:
        return len(self._ports)

    def _changed(self, _: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    data = self._events.recv(1 << 16)
                except OSError as error:
                    if error.errno != errno.ENOBUFS:  # messages were lost
                        raise
                    self._look_soon()
                    continue
                if any(kind in _MESSAGES for kind in _kinds(data)):
                    self._look_soon()

    def _look_soon(self) -> None:
        if self._look_at is None:
            doublings = min(self._num_refusals, _MOST_DOUBLINGS)
            self._look_at = time.monotonic() + _SETTLE_S * (1 << doublings)

    def _look(self) -> None:
        """Takes the ports that the bridge has now, and lets go of the others."""
        members = self._members()
        for index in list(self._ports):
            if members.get(index) != self._ports[index].name:
                self._release(index)
            elif not self._ports[index].is_in_place():
                self._pop(index).forget()
        self._refused = {}
        for index, name in members.items():
            if index not in self._ports:
                self._take(index, name)
        self._num_refusals = self._num_refusals + 1 if self._refused else 0

    def _members(self) -> dict[int, str]:
        try:
            bridge = socket.if_nametoindex(self._settings.bridge)
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise SwitchError(
                f"there is no interface {self._settings.bridge} here, but {names}"
            ) from error
        return {
            link["index"]: link.get_attr("IFLA_IFNAME")
            for link in self._ip.get_links()
            if link.get_attr("IFLA_MASTER") == bridge
        }

    def _take(self, index: int, name: str) -> None:
        try:
            port = Port(self._ip, index, name, self._settings)
        except (SwitchError, NetlinkError, OSError) as error:
            self._refused[name] = _reason(name, error)
            return
        self._ports[index] = port
        if port.classifier.descriptor is not None:
            self._selector.register(
                port.classifier.descriptor, selectors.EVENT_READ, lambda _: self._ready(port)
            )

    def _ready(self, port: Port) -> None:
        try:
            port.classifier.ready()
        except NetlinkError:  # somebody has replaced the queues
            self._look_soon()

    def _release(self, index: int) -> str | None:
        """What the kernel says if it refuses to put back what was there."""
        port = self._pop(index)
        try:
            port.release()
        except NetlinkError as error:
            if error.code != errno.ENODEV:  # the port has gone
                return f"port {port.name}: {os.strerror(error.code)}"
        return None

    def _pop(self, index: int) -> Port:
        port = self._ports.pop(index)
        if port.classifier.descriptor is not None:
            self._selector.unregister(port.classifier.descriptor)
        return port

    def _answer(self, _: socket.socket, request: Message) -> Answer:
        return self._stop_as_asked() if request.get("op") == "stop" else self._status(), ()

    def _stop_as_asked(self) -> Message:
        refused = self.release_all()
        self._requests.close()  # so that another may follow at once
        self.stop()
        if not refused:
            return {}
        reasons = "; ".join(refused)
        return {"error": f"ended, but the kernel did not put all old queues back: {reasons}"}

    def _status(self) -> Message:
        settings = asdict(self._settings) | {"mark": self._settings.mark.value}
        try:
            ports = [port.status() for port in self._ports.values()]
        except (NetlinkError, KeyError, OSError) as error:
            return {"error": f"a port has just changed ({error}): ask again"}
        return {**settings, "pid": os.getpid(), "ports": ports, "not_scheduled": self._refused}


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, SwitchError):
        return str(error)
    code = getattr(error, "code", None) or getattr(error, "errno", None) or 0
    advice = (
        "it needs root, or CAP_NET_ADMIN and CAP_NET_RAW of this network namespace, and a kernel "
        "with sch_htb and cls_bpf (without the latter: --classifier u32, which needs cls_u32)"
    )
    return f"port {name}: the kernel refuses its queues ({os.strerror(code)}): {advice}"


def _kinds(data: bytes) -> list[int]:
    """Types of the netlink messages in ``data``."""
    found, place = [], 0
    while place + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, place)
        found.append(kind)
        place += max(_HEADER.size, length + 3 & ~3)
    return found


def _open_events() -> socket.socket:
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    events.bind((0, _GROUP_LINK | _GROUP_TC))
    return events


def _bind(bridge: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address(bridge))
    except OSError as error:
        raise SwitchError(
            f'{bridge} is scheduled already: "dmlcomm switch stop" ends that, and '
            '"dmlcomm switch status" shows it'
        ) from error
    return listener


def _choose_classifier(settings: Settings) -> Settings:
    if settings.classifier != AUTOMATIC:
        return settings
    return replace(settings, classifier="u32" if kernel.why_not_permitted() else "ebpf")


def _live_on(report: Message) -> None:
    """The process that started this one is told, and may end."""
    print(json.dumps(report), flush=True)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def main() -> None:
    """Runs until it is stopped. The child that does the work survives the process that began it."""
    raw = json.loads(sys.argv[1])
    settings = _choose_classifier(Settings(**raw | {"mark": Mark(raw["mark"])}))
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    with IPRoute(groups=0) as ip:
        try:
            daemon = Daemon(settings, ip)
        except SwitchError as error:
            _live_on({"error": str(error)})
            os._exit(1)
        _live_on({"classifier": settings.classifier, "ports": daemon.num_ports()})
        try:
            daemon.serve()
        finally:
            daemon.release_all()


if __name__ == "__main__":
    main()
