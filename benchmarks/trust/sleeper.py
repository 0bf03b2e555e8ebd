"""Small broadcasts to a rank that sleeps: what has come early takes bounded memory."""

import time

import torch
import torch.distributed as dist

from benchmarks.memory import MIB, usage
from benchmarks.ranks import Ranks, Worker
from benchmarks.row import Row

COUNT = 300_000
MOST_MIB = 64
MOST_OF_LINEAR = 1.1
SLEEP_S = 10.0


def rows(quick: bool) -> list[Row]:
    count, sleep_s = (COUNT // 10, 1.0) if quick else (COUNT, SLEEP_S)
    half_s, _ = _measure(count // 2, sleep_s)
    seconds, more_bytes = _measure(count, sleep_s)
    return [
        Row(
            "sleeper",
            f"{count} broadcasts",
            seconds,
            bound_s=2 * half_s,
            most_of_bound=MOST_OF_LINEAR,
            grown_mib=more_bytes / MIB,
            most_grown_mib=MOST_MIB,
            remark="the bound is twice the time of half as many",
        )
    ]


def _measure(count: int, sleep_s: float) -> tuple[float, int]:
    """Seconds of the broadcasts once the rank is awake, and the worst growth of a rank."""
    with Ranks(2, ["dmlcomm"], {"DMLCOMM_TRANSPORT": "tcp"}) as ranks:
        results = ranks.call(broadcast_to_sleeper, count, sleep_s)
    assert all(is_right for _, _, is_right in results)
    return results[1][0], max(more for _, more, _ in results)


def broadcast_to_sleeper(worker: Worker, count: int, sleep_s: float) -> tuple[float, int, bool]:
    """Seconds, growth of the peak of resident memory, and whether the last value has come."""
    group, tensor = worker.group("dmlcomm"), torch.zeros(1)
    dist.broadcast(tensor, 0, group=group)
    before = usage().resident_bytes
    _forget_peak()
    worker.barrier()
    if worker.rank == 1:
        time.sleep(sleep_s)
    begin = time.perf_counter()
    for number in range(count):
        if worker.rank == 0:
            tensor.fill_(number)
        dist.broadcast(tensor, 0, group=group)
    return time.perf_counter() - begin, _peak_bytes() - before, tensor.item() == count - 1


def _forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak_bytes() -> int:
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
