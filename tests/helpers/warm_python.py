"""Python programs that have torch loaded already, also on the hosts of a lab.

    lab.run(warm_command("import torch; print(torch.ones(2))"))

`import torch` takes two seconds of a core, and a test in a lab starts up to nine ranks. The command
is a small program, which asks a server for a child with torch in it. The child enters the
namespaces of the program, gets its input, output and environment, and runs the script. The program
passes signals on, ends as the child ends, and takes it along when it is killed. But it can be
stopped (SIGSTOP) without stopping the child. A script that ends without an exception spends no time
on giving up torch's modules.

This file is the helper for tests, the small program and the server.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
# In the order in which they have to be entered, with the flag of each.
_NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "mnt": 0x00020000,
    "net": 0x40000000,
    "uts": 0x04000000,
}
_libc = ctypes.CDLL(None, use_errno=True)


def warm_command(script: str) -> list[str]:
    """What runs ``script`` as ``python -c`` does, but sooner."""
    return [sys.executable, "-S", __file__, "run", _server(), script]


def warmed(command: Sequence[str]) -> list[str]:
    """A command that starts this interpreter, so that it has torch; others are left as they are."""
    is_python = command[0] == sys.executable
    return warm_command(script_of(command[1:])) if is_python else list(command)


def script_of(arguments: Sequence[str]) -> str:
    """What Python does that is started with these arguments: ``-m module ...`` or ``file ...``."""
    first, *rest = arguments
    if first == "-m":
        start, argv = f"runpy.run_module({rest[0]!r}, None, '__main__', alter_sys=True)", rest
    else:
        start, argv = f"runpy.run_path({first!r}, None, '__main__')", arguments
    folder = "" if first == "-m" else os.path.dirname(first)
    return f"import runpy, sys\nsys.argv, sys.path[0] = {list(argv)!r}, {folder!r}\n{start}\n"


@functools.cache
def _server() -> str:
    """Where the server of this process listens, which ends with it."""
    folder = tempfile.TemporaryDirectory(prefix="dmlcomm-test-")
    atexit.register(folder.cleanup)
    path = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, __file__, "serve", path],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(process.wait)
    atexit.register(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", "the server has said why it does not start"
    process.stdout.close()
    return path


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# --- the small program


def _ask_for_a_child(path: str, script: str) -> NoReturn:
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    job = {"script": script, "folder": os.getcwd(), "environment": dict(os.environ)}
    text = json.dumps(job).encode()
    own = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in _NAMESPACES]
    socket.send_fds(server, [struct.pack("I", len(text))], [0, 1, 2, *own])
    server.sendall(text)
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    (code,) = struct.unpack("i", _receive(server, 4))
    if code < 0:
        if -code in _SIGNALS:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise SystemExit("the other side has ended")
        data += piece
    return data


# --- the server


def _serve(path: str) -> dict[str, Any]:
    """Returns in the children that are asked for only: what a child has to do."""
    _die_with_parent()
    sys.path[0] = ""
    import torch._dynamo  # which an optimizer imports when it is made
    import torch.distributed  # noqa: F401

    import dmlcomm.errors  # noqa: F401

    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(1, b"ready\n")
    os.dup2(0, 1)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _die_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _start_child(connection)
        connection.close()


def _start_child(connection: socket.socket) -> dict[str, Any]:
    """Makes the child, in which this returns, and stays with it to its end."""
    header, descriptors, _, _ = socket.recv_fds(connection, 4, 3 + len(_NAMESPACES))
    job = json.loads(_receive(connection, *struct.unpack("I", header)))
    streams, namespaces = descriptors[:3], dict(zip(_NAMESPACES, descriptors[3:], strict=True))
    _enter(namespaces, "user", "pid")  # the latter is for children
    pid = os.fork()
    if pid != 0:
        for descriptor in (*streams, *namespaces.values()):
            os.close(descriptor)
        _accompany(connection, pid)
    _die_with_parent()
    connection.close()
    os.setsid()
    _enter(namespaces, "mnt", "net", "uts")
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for descriptor in (*streams, *namespaces.values()):
        os.close(descriptor)
    return job


def _enter(namespaces: dict[str, int], *kinds: str) -> None:
    """Those in which this process is not yet."""
    for kind in kinds:
        is_new = os.stat(namespaces[kind]).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino
        if is_new and _libc.setns(namespaces[kind], _NAMESPACES[kind]) != 0:
            raise OSError(ctypes.get_errno(), f"the namespace {kind} cannot be entered")


def _accompany(connection: socket.socket, pid: int) -> NoReturn:
    """Passes signals on to the child, and its end to the other side; kills it when that is gone."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(os.pidfd_open(pid), select.POLLIN)
    while connection.fileno() in [descriptor for descriptor, _ in poll.poll()]:
        numbers = connection.recv(64)
        if not numbers:
            _signal(pid, signal.SIGKILL)
            os._exit(0)
        for number in numbers:
            _signal(pid, number)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _signal(pid: int, number: int) -> None:
    """Also to the processes that it has started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has no group of its own yet
        os.kill(pid, number)


def _run(job: dict[str, Any]) -> NoReturn:
    """In a child: the script, as if this process had been started for it."""
    import random

    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    random.seed()
    sys.argv = ["-c"]
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    code = 0
    try:
        exec(compile(job["script"], "<string>", "exec"), names)
    except SystemExit as end:
        code = _exit_code(end)
    _end(names, code)


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _end(names: dict[str, Any], code: int) -> NoReturn:
    """As Python ends, but for one or two seconds in which it gives up all modules, torch's too."""
    import threading

    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    names.clear()
    sys.stdout.flush()
    sys.stderr.flush()
    _libc.exit(code)  # with what C++ does at the end
    raise AssertionError("exit() has returned")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        _ask_for_a_child(*sys.argv[2:])
    _run(_serve(sys.argv[2]))
