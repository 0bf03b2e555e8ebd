"""`dmlcomm inspect` while a rank holds the interpreter's lock."""

import ctypes
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from benchmarks.ranks import Ranks, Worker
from benchmarks.row import Row

NUM_RANKS = 3
HANGS = 1
HANGS_S = 20
MOST_S = 1.0
COUNT = 5


def rows(quick: bool) -> list[Row]:
    """The slowest of some calls of the command, each a process of its own."""
    found = []
    with Ranks(NUM_RANKS, ["dmlcomm"], {}) as ranks, ThreadPoolExecutor() as pool:
        hanging = pool.submit(ranks.call, hang)
        pids = ranks.process_ids
        while not hanging.done() and len(found) < (2 if quick else 10):
            begin = time.perf_counter()
            lines = _findings(pids)
            seconds = time.perf_counter() - begin
            if _is_named(lines, pids[HANGS]):
                found.append((seconds, lines))
        hanging.result()
    if not found:
        raise RuntimeError("dmlcomm inspect did not name the rank that hangs")
    slowest_s, lines = max(found)
    return [
        Row(
            "inspect",
            "inspect",
            slowest_s,
            bound_s=MOST_S,
            most_of_bound=1.0,
            remark="; ".join(lines),
        )
    ]


def _findings(pids: list[int]) -> list[str]:
    """Of the job with these processes."""
    arguments = [sys.executable, "-m", "dmlcomm", "inspect", "--json"]
    result = subprocess.run(arguments, capture_output=True, text=True)
    jobs = json.loads(result.stdout)["jobs"] if result.stdout else []
    own = [job for job in jobs if {process["pid"] for process in job["processes"]} >= set(pids)]
    return own[0]["findings"] if own else []


def _is_named(lines: list[str], pid: int) -> bool:
    """Whether the rank that hangs is named, and the operation for which the others wait."""
    names_rank = any(f"rank {HANGS} (pid {pid}) has not called" in line for line in lines)
    return names_rank and any(f"all_reduce(sum, f32, {COUNT} elements" in line for line in lines)


def hang(worker: Worker) -> None:
    group = worker.group("dmlcomm")
    dist.all_reduce(torch.ones(1), group=group)
    if worker.rank == HANGS:
        ctypes.PyDLL(None).sleep(HANGS_S)  # with the interpreter's lock
    dist.all_reduce(torch.ones(COUNT), group=group)
