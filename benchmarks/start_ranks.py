"""The ranks of ``benchmarks.start``, and a store that counts their calls."""

import multiprocessing
import os
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.barrier import PAUSE_S, Barrier

TIMEOUT_S = 300

# A rank has them when its time begins.
PRELOADED = ["benchmarks.start_ranks", "dmlcomm.backends.creator", "dmlcomm._c10d"]


class CountingStore(dist.Store):
    """A store that counts the calls which this rank makes of another store.

    Attributes:
        calls: number by name; ``check`` apart, whose number depends on how late others are.
    """

    def __init__(self, store: dist.Store):
        super().__init__()
        self._store = store
        self.calls: Counter[str] = Counter()

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls[name] += 1
        return getattr(self._store, name)(*arguments)

    def set(self, key, value):
        return self._call("set", key, value)

    def get(self, key):
        return self._call("get", key)

    def add(self, key, value):
        return self._call("add", key, value)

    def check(self, keys):
        return self._call("check", keys)

    def wait(self, keys, *timeout):
        return self._call("wait", keys, *timeout)

    def multi_get(self, keys):
        return self._call("multi_get", keys)

    def multi_set(self, keys, values):
        return self._call("multi_set", keys, values)

    def has_extended_api(self):
        return self._store.has_extended_api()

    def clone(self):
        return self


@dataclass(frozen=True)
class Start:
    """What one rank saw; times of CLOCK_MONOTONIC, which all processes share."""

    began: float
    has_group: float
    barrier_s: float
    all_reduce_s: float
    open_files: tuple[int, int]  # after the start, and after an all_reduce
    calls: Counter


def _run(backend: str, rank: int, num_ranks: int, port: int, slots) -> Start:
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    meeting = Barrier(slots, rank, PAUSE_S)
    before = _open_files()

    def start(prefix: str, store: dist.Store) -> None:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(prefix, store),
            rank=rank,
            world_size=num_ranks,
            timeout=limit,
        )

    meeting.wait()
    began = time.monotonic()
    start("timed", store)
    has_group = time.monotonic()
    after_start = _open_files() - before
    meeting.leave()
    barrier_s = _seconds(dist.barrier)
    meeting.leave()
    data = torch.ones(1_000_000)
    all_reduce_s = _seconds(lambda: dist.all_reduce(data))
    assert data[0] == data[-1] == num_ranks
    after_all_reduce = _open_files() - before
    meeting.leave()
    dist.destroy_process_group()
    counting = CountingStore(store)
    start("counted", counting)
    meeting.leave()
    dist.destroy_process_group()
    return Start(
        began, has_group, barrier_s, all_reduce_s, (after_start, after_all_reduce), counting.calls
    )


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _seconds(operation) -> float:
    begin = time.monotonic()
    operation()
    return time.monotonic() - begin


def _main(connection, environment: dict[str, str], *arguments) -> None:
    os.environ.update(environment)
    try:
        connection.send(_run(*arguments))
    except BaseException:
        connection.send(traceback.format_exc())


def measure(backend: str, num_ranks: int, environment: dict[str, str] | None = None) -> list[Start]:
    """One start of ``num_ranks`` processes. Raises RuntimeError if a rank fails."""
    # gloo would resolve the host's name and may fail; all ranks are on this host.
    environment = {"GLOO_SOCKET_IFNAME": "lo"} | (environment or {})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    slots = context.RawArray("q", num_ranks)
    processes, connections = [], []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        arguments = (theirs, environment, backend, rank, num_ranks, store.port, slots)
        processes.append(context.Process(target=_main, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        connections.append(ours)
    try:
        return [_answer(rank, connection) for rank, connection in enumerate(connections)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _answer(rank: int, connection) -> Start:
    if not connection.poll(TIMEOUT_S):
        raise RuntimeError(f"rank {rank} is not done after {TIMEOUT_S} s")
    answer = connection.recv()
    if not isinstance(answer, Start):
        raise RuntimeError(f"rank {rank} failed:\n{answer}")
    return answer
