"""What processes of a job say when they are asked from outside, and what it means.

Each process that has made a group of ranks listens at a Unix socket in a folder of its user (the
core's `engine/inspector.h`), and tells its state to processes that connect. So only the ranks of
this host can be asked.
"""

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dmlcomm import _core

# A process that is stopped (SIGSTOP) takes connections, and does not answer.
ANSWER_TIMEOUT_S = 2.0

State = dict[str, Any]


def ask_all(folder: Path | None = None) -> list[State]:
    """The states of all processes of this user on this host, by process id.

    One that does not answer has an "error" in the place of its groups.
    """
    folder = folder or Path(_core.inspector_folder())
    if not folder.exists():
        return []
    found = folder.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone: it is not trusted")
    states = [_ask(path) for path in folder.glob("*.sock")]
    return sorted((state for state in states if state), key=lambda state: state["pid"])


def _ask(path: Path) -> State | None:
    """None: there is no such process any more."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            connection.connect(str(path))
            data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            state: State = json.loads(data)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(OSError):
                path.unlink()  # of a process that was killed
            return None
        except (OSError, ValueError) as error:
            return {"pid": int(path.stem), "job": "", "groups": [], "error": str(error)}
        return state


def jobs_of(states: Iterable[State]) -> dict[str, list[State]]:
    """By job; processes that do not answer are in every one."""
    states = list(states)
    silent = [state for state in states if "error" in state]
    jobs: dict[str, list[State]] = {}
    for state in states:
        if "error" not in state:
            jobs.setdefault(state["job"], [*silent]).append(state)
    return jobs


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


# Name -> (key of a group, or of a rail, help); names of counters end in _total.
GROUP_METRICS = {
    "dmlcomm_rank_operations": ("num_operations", "Operations in flight"),
    "dmlcomm_rank_last_collective": (
        "last_called",
        "Number of the last collective that was called",
    ),
}
RAIL_METRICS = {
    "dmlcomm_rail_sent_bytes_total": ("bytes_sent", "Bytes sent over the rail"),
    "dmlcomm_rail_received_bytes_total": ("bytes_received", "Bytes received over the rail"),
    "dmlcomm_rail_resent_bytes_total": ("bytes_resent", "Bytes that TCP has sent again"),
    "dmlcomm_rail_repeated_frames_total": ("frames_repeated", "Frames repeated over other rails"),
    "dmlcomm_rail_lost_lanes_total": ("lanes_lost", "Connections that were lost"),
    "dmlcomm_rail_restored_lanes_total": ("lanes_back", "Connections that came back"),
    "dmlcomm_rail_bits_per_second": ("bits_per_second", "Measured rate of the rail; 0: not known"),
}


def metrics(states: Iterable[State]) -> str:
    """In the text format of Prometheus, as node-exporter reads it from files."""
    groups = [
        ({"job_number": state["job"], "group": group["name"], "rank": group["rank"]}, group)
        for state in states
        for group in state["groups"]
    ]
    rails = [
        (labels | {"rail": rail["interface"]}, rail)
        for labels, group in groups
        for rail in group["rails"]
    ]
    failed = [(labels, {"failed": int(bool(group["error"]))}) for labels, group in groups]
    lines = _metrics_of(GROUP_METRICS, groups)
    lines += _metrics_of({"dmlcomm_rank_failed": ("failed", "1: the group has failed")}, failed)
    lines += _metrics_of(RAIL_METRICS, rails)
    return "".join(f"{line}\n" for line in lines)


def _metrics_of(
    named: dict[str, tuple[str, str]], values: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> list[str]:
    lines = []
    for name, (key, text) in named.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for labels, entry in values:
            shown = ",".join(f"{label}={json.dumps(str(value))}" for label, value in labels.items())
            lines.append(f"{name}{{{shown}}} {entry[key]}")
    return lines
