"""The way into a lab: starts processes on its nodes, or forks into them.

A process that goes through here has one thread, and is one of the command line's: entering the user
namespace and starting children in the PID namespace cannot be undone.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from dmlcomm.errors import LabError
from dmlcomm.lab import namespaces as ns
from dmlcomm.lab.client import Client

# The exit code of a shell for a command that it cannot start.
CANNOT_START = 126

_HOLDER_IN_THE_LAB = 1


class Entry:
    """From now on, children of this process are processes of the lab. Raises LabError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        answer, descriptors = client.descriptors("enter")
        self._descriptors = dict(zip(answer["kinds"], descriptors, strict=True))
        try:
            if "user" in self._descriptors:
                ns.setns(self._descriptors["user"], ns.CLONE_NEWUSER)
            ns.setns(self._descriptors["pid"], ns.CLONE_NEWPID)
        except OSError as error:
            raise LabError(f'cannot enter the lab "{client.name}": {error}') from error

    def start(
        self, node: str, command: Sequence[str], environment: dict[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Starts a command on a node. It is killed when this process ends.

        Raises LabError when the command does not exist.
        """
        net, uts = self._namespaces_of(node)
        enter = functools.partial(_enter, self._descriptors["mnt"], net, uts, os.getcwd())
        try:
            return subprocess.Popen(command, env=environment, preexec_fn=enter, **options)
        except FileNotFoundError as error:
            raise LabError(f'there is no command "{command[0]}" on {node}') from error
        except OSError as error:
            raise LabError(f'"{command[0]}" cannot be started on {node}: {error}') from error
        finally:
            os.close(net)
            os.close(uts)

    def fork(self, node: str) -> int:
        """As `os.fork`: the child is a process of the node. It is killed when this one ends."""
        net, uts = self._namespaces_of(node)
        process = os.fork()
        if process == 0:
            _enter(self._descriptors["mnt"], net, uts, os.getcwd())
        os.close(net)
        os.close(uts)
        return process

    def _namespaces_of(self, node: str) -> tuple[int, int]:
        _, (net, uts) = self._client.descriptors("namespaces", node=node)
        return net, uts


def _enter(mnt: int, net: int, uts: int, folder: str) -> None:
    """Runs in the child before the command. Only stderr can tell of a failure here."""
    try:
        ns.setns(mnt, ns.CLONE_NEWNS)
        ns.setns(net, ns.CLONE_NEWNET)
        ns.setns(uts, ns.CLONE_NEWUTS)
        ns.show_interfaces_of_this_namespace()
        os.chdir(folder)
        ns.die_with_parent()
        if os.getppid() == _HOLDER_IN_THE_LAB:
            raise OSError("the process that started this one has ended")
    except OSError as error:
        print(f"dmlcomm lab: cannot enter the lab: {error}", file=sys.stderr, flush=True)
        os._exit(CANNOT_START)
