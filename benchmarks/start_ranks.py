"""The ranks of ``benchmarks.start``, and a store that counts their calls."""

import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

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
class Span:
    """Times of CLOCK_MONOTONIC, which all processes share."""

    begin: float
    end: float


@dataclass(frozen=True)
class Start:
    """What one rank saw.

    Attributes:
        open_files: after the start, and after an all_reduce.
    """

    start: Span
    barrier: Span
    all_reduce: Span
    open_files: tuple[int, int]
    calls: Counter


class _Rank:
    """One process. ``connection`` leads to the parent, through which the ranks meet asleep."""

    def __init__(self, connection: Connection, backend: str, rank: int, num_ranks: int, port: int):
        self._connection, self._backend = connection, backend
        self._rank, self._num_ranks = rank, num_ranks
        self._limit = timedelta(seconds=TIMEOUT_S)
        self._store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=self._limit)

    def run(self) -> Start:
        torch.set_num_threads(1)
        before = _open_files()
        start = self._together(lambda: self._start("timed", self._store))
        after_start = _open_files() - before
        barrier = self._together(dist.barrier)
        data = torch.ones(1_000_000)
        all_reduce = self._together(lambda: dist.all_reduce(data))
        assert data[0] == data[-1] == self._num_ranks
        after_all_reduce = _open_files() - before
        self._together(dist.destroy_process_group)
        counting = CountingStore(self._store)
        self._together(lambda: self._start("counted", counting))
        self._together(dist.destroy_process_group)
        return Start(start, barrier, all_reduce, (after_start, after_all_reduce), counting.calls)

    def _together(self, operation: Callable[[], None]) -> Span:
        """All ranks begin at once."""
        self._connection.send(None)
        self._connection.recv()
        begin = time.monotonic()
        operation()
        return Span(begin, time.monotonic())

    def _start(self, prefix: str, store: dist.Store) -> None:
        dist.init_process_group(
            self._backend,
            store=dist.PrefixStore(prefix, store),
            rank=self._rank,
            world_size=self._num_ranks,
            timeout=self._limit,
        )


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _main(connection: Connection, environment: dict[str, str], *arguments: Any) -> None:
    os.environ.update(environment)
    try:
        connection.send(_Rank(connection, *arguments).run())
    except BaseException:
        connection.send(traceback.format_exc())


def measure(backend: str, num_ranks: int, environment: dict[str, str] | None = None) -> list[Start]:
    """One start of ``num_ranks`` processes. Raises RuntimeError if a rank fails."""
    # gloo would resolve the host's name and may fail; all ranks are on this host.
    environment = {"GLOO_SOCKET_IFNAME": "lo"} | (environment or {})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes, connections = [], []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        arguments = (theirs, environment, backend, rank, num_ranks, store.port)
        processes.append(context.Process(target=_main, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        connections.append(ours)
    try:
        return _serve(connections)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _serve(connections: list[Connection]) -> list[Start]:
    """Lets the ranks meet, again and again, until they have their results."""
    while True:
        answers = [_answer(rank, connection) for rank, connection in enumerate(connections)]
        if answers[0] is not None:
            return answers
        for connection in connections:
            connection.send(None)


def _answer(rank: int, connection: Connection) -> Start | None:
    if not connection.poll(TIMEOUT_S):
        raise RuntimeError(f"rank {rank} is not done after {TIMEOUT_S} s")
    answer = connection.recv()
    if isinstance(answer, str):
        raise RuntimeError(f"rank {rank} failed:\n{answer}")
    return answer
