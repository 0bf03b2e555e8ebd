"""The process that a lab consists of: ``python -m dmlcomm.lab.holder FD``, started by `Lab` only.

It holds the namespaces of the lab, and is the first process of the lab's PID namespace, in which
everything runs that is started in the lab. When it ends, however it ends, the kernel kills those
processes, and with the last descriptor the namespaces, interfaces and bridges go.

FD is one end of a socket pair. The graph comes in; progress, then "ready" or "error" goes out.
After that the holder answers requests (see `wire`), one after the other, until it is killed, which
is how a lab is taken down, or the process that owns the lab is gone.
"""

import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from dmlcomm.errors import LabError
from dmlcomm.lab import namespaces as ns
from dmlcomm.lab import wire
from dmlcomm.lab.isolation import isolate, settle
from dmlcomm.lab.network import Network
from dmlcomm.lab.options import Options
from dmlcomm.lab.processes import kill_marked
from dmlcomm.lab.requests import Answer, RequestServer
from dmlcomm.lab.wire import Message, Reader
from dmlcomm.topology import graph as topology
from dmlcomm.topology.shape import apply_changes, take_move


class Holder:
    """Serves one lab. ``owner``: a descriptor that becomes readable when the owner is gone."""

    def __init__(
        self, listener: socket.socket, network: Network, facts: Message, owner: int | None
    ) -> None:
        self._network = network
        self._facts = facts
        self._own = tuple(ns.open_own(kind) for kind in _kinds_to_enter(facts))
        self._num_runs = 0
        self._runs: dict[socket.socket, str] = {}
        self._operations: dict[str, Callable[[socket.socket, Message], Answer]] = {
            "describe": self._describe,
            "enter": self._enter,
            "namespaces": self._namespaces,
            "counters": self._counters,
            "set": self._set,
            "move": self._move,
            "run": self._run,
            "end_run": self._end_run,
        }
        self._selector = selectors.DefaultSelector()
        RequestServer(self._selector, listener, [os.geteuid()], self._answer, self._end)
        if owner is not None:
            self._selector.register(owner, selectors.EVENT_READ, _exit)

    def serve(self) -> None:
        """Never returns: the process ends."""
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _end(self, connection: socket.socket) -> None:
        if run := self._runs.pop(connection, None):
            kill_marked(run)

    def _answer(self, connection: socket.socket, request: Message) -> Answer:
        try:
            return self._operations[str(request.get("op"))](connection, request)
        except LabError as error:
            return {"error": str(error)}, ()
        except Exception as error:
            return {"error": f"{request.get('op')}: {type(error).__name__}: {error}"}, ()

    def _describe(self, _: socket.socket, __: Message) -> Answer:
        return {"graph": topology.to_json(self._network.graph), **self._facts}, ()

    def _enter(self, _: socket.socket, __: Message) -> Answer:
        return {"kinds": _kinds_to_enter(self._facts)}, self._own

    def _namespaces(self, _: socket.socket, request: Message) -> Answer:
        return {}, self._network.namespaces(request["node"])

    def _counters(self, _: socket.socket, __: Message) -> Answer:
        return {"nodes": self._network.counters()}, ()

    def _set(self, _: socket.socket, request: Message) -> Answer:
        link = topology.find_link(self._network.graph, request["place"])
        switch, changes = take_move(request["changes"])
        is_first = request["place"] == str(link.a)
        shape, up = apply_changes(changes, link.shape, link.up, is_first)
        if switch is not None:
            self._network.move_links([(request["place"], switch)])
        self._network.set_link(request["place"], shape, up)
        return {}, ()

    def _move(self, _: socket.socket, request: Message) -> Answer:
        self._network.move_links(request["moves"], request["dark_s"])
        return {}, ()

    def _run(self, connection: socket.socket, _: Message) -> Answer:
        self._num_runs += 1
        self._runs[connection] = f"{self._facts['name']}.{os.getpid()}.{self._num_runs}"
        return {"run": self._runs[connection], "number": self._num_runs}, ()

    def _end_run(self, connection: socket.socket, _: Message) -> Answer:
        self._end(connection)
        return {}, ()


def _kinds_to_enter(facts: Message) -> list[str]:
    """In the order in which they have to be entered."""
    return ["user", "mnt", "pid"] if facts["user_namespace"] else ["mnt", "pid"]


def _exit(_: Any) -> None:
    os._exit(0)


def _listen_later(name: str) -> socket.socket:
    """Bound before anything is built, so that a name has one lab; it listens when the lab is up."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(wire.address(name))
    except OSError as error:
        raise LabError(
            f'there is a lab "{name}" already: take it down with "dmlcomm lab down --name {name}", '
            "or give another --name"
        ) from error
    return listener


def _watch(owner: int | None) -> int | None:
    """A descriptor that becomes readable when the owner, who started this process, ends."""
    if owner is None:
        return None
    descriptor = os.pidfd_open(owner)
    if os.getppid() != owner:
        os._exit(1)  # it is gone, and the number may be another's
    return descriptor


def _become_daemon() -> None:
    """It ends on SIGTERM, and lets orphans go."""
    os.setsid()
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Two descriptors per node, and those that a client asks for.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _silence() -> None:
    """Closes the output: the process that started the lab may be waiting for its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _hosts_file(graph: Any) -> str:
    """/etc/hosts of the lab: hosts are known by their addresses on the management network.

    Also as IPv6 sockets see them: torch's TCPStore asks for the name of every client.
    """
    lines = ["127.0.0.1 localhost"]
    for host in topology.hosts(graph):
        address = graph.nodes[host]["management"].partition("/")[0]
        lines += [f"{address} {host}", f"::ffff:{address} {host}"]
    return "\n".join(lines) + "\n"


def _build(
    control: socket.socket, request: Message, user_namespace: bool
) -> tuple[Network, Message]:
    graph = topology.from_json(request["graph"])
    settle(_hosts_file(graph))

    def progress(what: str, done: int, total: int) -> None:
        wire.send(control, {"progress": what, "done": done, "total": total})

    network = Network(graph, Options(**request["options"]), progress)
    return network, {"name": request["name"], "user_namespace": user_namespace}


def main() -> None:
    """Becomes the holder of the lab that is described on the control socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    request = Reader(control).wait_for_line()
    if request is None:
        return
    try:
        owner = _watch(request["owner"])
        listener = _listen_later(request["name"])
        user_namespace = isolate()
        if os.fork() != 0:
            os._exit(0)
        _become_daemon()
        network, facts = _build(control, request, user_namespace)
        holder = Holder(listener, network, facts, owner)
        wire.send(control, {"ready": True})
    except LabError as error:
        wire.send(control, {"error": str(error)})
        os._exit(1)
    except BrokenPipeError:
        os._exit(1)  # the process that wanted the lab is gone
    control.close()
    _silence()
    holder.serve()


if __name__ == "__main__":
    main()
