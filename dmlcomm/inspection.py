"""What processes of a job say when they are asked from outside, and what it means.

Each process that has made a group of ranks, and each parameter server, proxy and worker of one,
listens at a Unix socket in a folder of its user (the core's `engine/inspector.h`), and tells its
state to processes that connect. So only the processes of this host can be asked.
"""

import contextlib
import json
import os
import socket
import stat
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dmlcomm import _core

# A process that is stopped (SIGSTOP) takes connections, and does not answer.
ANSWER_TIMEOUT_S = 2.0

# What a process tells of; lists.
PARTS = ("groups", "servers", "workers")

State = dict[str, Any]


def ask_all(folder: Path | None = None) -> list[State]:
    """The states of all processes of this user on this host, by process id.

    One that does not answer has an "error" in the place of its groups. The ids are those that this
    process knows them by: in a container of theirs they may have others.
    """
    folder = folder or Path(_core.inspector_folder())
    if not folder.exists():
        return []
    found = folder.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone: it is not trusted")
    states: dict[int, State] = {}
    for answer in filter(None, map(_ask, sorted(folder.glob("*.sock")))):
        state = states.setdefault(answer["pid"], _nothing_of(answer["pid"]))
        _add(state, answer)
    return [states[pid] for pid in sorted(states)]


def _nothing_of(pid: int) -> State:
    return {"pid": pid, "job": "", "groups": [], "servers": [], "workers": [], "metrics": ""}


def _add(state: State, answer: State) -> None:
    """A process has a socket for each of its modules that contain the core."""
    for key, value in answer.items():
        state[key] = state[key] + value if key in (*PARTS, "metrics") else value or state.get(key)


def _ask(path: Path, again: bool = True) -> State | None:
    """None: there is no such process any more."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        pid = int(path.stem.partition("-")[0])
        try:
            connection.connect(str(path))
            pid = _pid_behind(connection) or pid
            data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            state: State = json.loads(data)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(OSError):
                path.unlink()  # of a process that was killed
            return None
        except TimeoutError as error:
            return {"pid": pid, "error": str(error)}
        except (OSError, ValueError) as error:
            # If the process has ended meanwhile, it refuses the next connection.
            return _ask(path, again=False) if again else {"pid": pid, "error": str(error)}
        return state | {"pid": pid}


def _pid_behind(connection: socket.socket) -> int:
    """The process that listens there; 0 if it has no id here."""
    credentials = struct.Struct("3i")  # pid, uid, gid
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    pid: int = credentials.unpack(data)[0]
    return pid


def jobs_of(states: Iterable[State]) -> dict[str, list[State]]:
    """By job: what has a group or a connection in common. Silent processes are in every one.

    A job without a group of ranks has no number, and is called after its first process.
    """
    states = list(states)
    silent = [state for state in states if "error" in state]
    jobs: list[tuple[set[str], list[State]]] = []
    for state in states:
        if "error" in state or not any(state[part] for part in PARTS):
            continue
        marks, members = _marks(state), [state]
        for job in [job for job in jobs if job[0] & marks]:
            jobs.remove(job)
            marks, members = marks | job[0], job[1] + members
        jobs.append((marks, members))
    return {_name_of(members): [*silent, *members] for _, members in jobs}


def _marks(state: State) -> set[str]:
    """Those of two processes that belong together have one in common."""
    connections = [
        *(worker["connection"] for server in state["servers"] for worker in server["workers"]),
        *(server["parent"] for server in state["servers"]),
        *(group["number"] for group in state["groups"]),
        *(one["connection"] for worker in state["workers"] for one in worker["connections"]),
    ]
    groups = [f"group {state['job']}"] if state["job"] else []
    return {f"pid {state['pid']}", *groups, *filter(None, connections)}


def _name_of(members: Sequence[State]) -> str:
    numbers = sorted(state["job"] for state in members if state["job"])
    return numbers[0] if numbers else f"ps-{min(state['pid'] for state in members)}"


def findings(states: Sequence[State]) -> list[str]:
    """What holds up the groups of one job, in words: who waits for whom, and who is missing."""
    lines = [
        f"process {state['pid']} does not answer: {state['error']}; is it stopped?"
        for state in states
        if "error" in state
    ]
    groups: dict[str, dict[int, State]] = {}
    for state in states:
        for group in state["groups"]:
            groups.setdefault(group["name"], {})[group["rank"]] = group | {"pid": state["pid"]}
    for name, members in sorted(groups.items()):
        lines += _findings_of_group(name, members)
    for state in states:
        for server in state["servers"]:
            lines += _findings_of_server(server, state["pid"])
    return lines


def _findings_of_group(name: str, members: dict[int, State]) -> list[str]:
    size = next(iter(members.values()))["num_ranks"]
    lines = [
        f"group {name}, rank {rank}: has failed: {member['error']}"
        for rank, member in sorted(members.items())
        if member["error"]
    ]
    waiting = {rank: member["operations"][0] for rank, member in members.items() if _waits(member)}
    for rank, operation in sorted(waiting.items()):
        awaited = ", ".join(map(str, operation["waits_for"])) or "its turn"
        lines.append(f"group {name}, rank {rank}: {operation['operation']} waits for {awaited}")
    if not waiting:
        return lines
    first = min(operation["sequence"] for operation in waiting.values())
    for rank in range(size):
        member = members.get(rank)
        if member is None:
            lines.append(f"group {name}, rank {rank}: no process of this host; ask on its host")
        elif first > 0 and member["last_called"] < first:
            last = member["last_begun"] or "nothing"
            lines.append(
                f"group {name}, rank {rank} (pid {member['pid']}) has not called collective "
                f"#{first}, which others wait for; before, it called {last}"
            )
    return lines


def _waits(member: State) -> bool:
    return bool(member["operations"])


def _findings_of_server(server: State, pid: int) -> list[str]:
    who = f"{name_of_server(server)} (pid {pid})"
    lines = [f"{who}: server {lost} is lost" for lost in server["lost_servers"]]
    for worker in server["workers"]:
        if not worker["connected"] and worker["reason"]:
            number = f"{'proxy' if worker['is_proxy'] else 'worker'} {worker['worker']}"
            lines.append(f"{who}: {number} is lost: {worker['reason']}")
    for model in server["models"]:
        behind = behind_of(model)
        if behind:
            ahead = max(model["clocks"].values())
            workers = ", ".join(f"{worker} (at {model['clocks'][worker]})" for worker in behind)
            lines.append(f"{who}: model {model['name']} waits for {workers}; others are at {ahead}")
    return lines


def name_of_server(server: State) -> str:
    """As messages have it: "server 1 of 2", or the proxy that stands in for it."""
    name = f"server {server['server']} of {server['num_servers']}"
    return f"proxy of {name}" if server["is_proxy"] else name


def behind_of(model: State) -> list[str]:
    """The workers whose clock others have passed."""
    clocks = model["clocks"]
    return [worker for worker, clock in clocks.items() if clock < max(clocks.values())]


def metrics(states: Iterable[State]) -> str:
    """In the text format of Prometheus, as node-exporter reads it from files.

    Each process says its own; here the lines of one metric come together.
    """
    families: dict[str, list[str]] = {}
    for state in states:
        for line in state.get("metrics", "").splitlines():
            words = line.replace("{", " ").split(" ")
            lines = families.setdefault(words[2] if line.startswith("#") else words[0], [])
            if not line.startswith("#") or line not in lines:
                lines.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)
