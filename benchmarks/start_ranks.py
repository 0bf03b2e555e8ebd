"""The ranks of ``benchmarks.start``, on this host or on those of a lab, and a store that counts
their calls.
"""

import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.operations import OPERATIONS, Case
from dmlcomm.lab import Lab
from dmlcomm.lab.client import Client
from dmlcomm.lab.entry import Entry
from dmlcomm.lab.environment import Job, of_rank
from dmlcomm.topology import graph as topology

TIMEOUT_S = 300

# Every collective runs with a vector of each: small and large ones take different algorithms.
SIZES = (1 << 12, 1 << 20)

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
        collectives: of each that `OPERATIONS` has, in each of `SIZES`.
        wrong: elements of their results.
        open_files: after the start, and after every collective.
    """

    start: Span
    barrier: Span
    all_reduce: Span
    collectives: list[Span]
    wrong: int
    open_files: tuple[int, int]
    calls: Counter


@dataclass(frozen=True)
class Place:
    """Where a rank runs, and where it finds the store.

    Attributes:
        lab, node: empty for this host.
        has_store: whether the rank itself serves the store.
    """

    address: str
    port: int
    has_store: bool = False
    lab: str = ""
    node: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def enter(self) -> None:
        """In a lab it returns in a child, to whose end this process stays."""
        os.environ.update(self.environment)
        if not self.lab:
            return
        with Client(self.lab) as client:
            process = Entry(client).fork(self.node)
        if process != 0:
            _, status = os.waitpid(process, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


class _Rank:
    """One process. ``connection`` leads to the parent, through which the ranks meet asleep."""

    def __init__(
        self, connection: Connection, backend: str, rank: int, num_ranks: int, place: Place
    ):
        self._connection, self._backend = connection, backend
        self._rank, self._num_ranks = rank, num_ranks
        self._limit = timedelta(seconds=TIMEOUT_S)
        self._store = dist.TCPStore(
            place.address,
            place.port,
            is_master=place.has_store,
            timeout=self._limit,
            wait_for_workers=False,
        )

    def run(self) -> Start:
        torch.set_num_threads(1)
        before = _open_files()
        start = self._together(lambda: self._start("timed", self._store))
        after_start = _open_files() - before
        barrier = self._together(dist.barrier)
        data = torch.ones(1_000_000)
        all_reduce = self._together(lambda: dist.all_reduce(data))
        assert data[0] == data[-1] == self._num_ranks
        collectives, wrong = self._every_collective()
        open_files = (after_start, _open_files() - before)
        self._together(dist.destroy_process_group)
        counting = CountingStore(self._store)
        self._together(lambda: self._start("counted", counting))
        self._together(dist.destroy_process_group)
        return Start(start, barrier, all_reduce, collectives, wrong, open_files, counting.calls)

    def _every_collective(self) -> tuple[list[Span], int]:
        """Their spans, and how many elements of the results are wrong."""
        spans, wrong = [], 0
        for name, operation in OPERATIONS.items():
            for size in SIZES:
                case = Case(name, size, torch.float32, self._num_ranks)
                buffers = operation.buffers(case, self._rank)
                operation.fill(buffers, case, self._rank, seed=1)
                run = partial(operation.run, buffers, case, dist.group.WORLD)
                spans.append(self._together(run))
                wrong += operation.count_wrong(buffers, case, self._rank, seed=1)
        return spans, wrong

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


def _main(connection: Connection, place: Place, *arguments: Any) -> None:
    try:
        place.enter()
        connection.send(_Rank(connection, *arguments, place).run())
    except BaseException:
        connection.send(traceback.format_exc())


def measure(backend: str, num_ranks: int, environment: dict[str, str] | None = None) -> list[Start]:
    """One start of ``num_ranks`` processes of this host. Raises RuntimeError if a rank fails."""
    # gloo would resolve the host's name and may fail.
    environment = {"GLOO_SOCKET_IFNAME": "lo"} | (environment or {})
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = Place("127.0.0.1", store.port, environment=environment)
    return _start_at([place] * num_ranks, backend)


def measure_in_lab(backend: str, lab: Lab) -> list[Start]:
    """One start of one process on every host of a lab. Raises RuntimeError if a rank fails."""
    with Client(lab.name) as client:
        number = client.ask("run")["number"]
    graph = lab.graph()
    job = Job(graph, topology.hosts(graph), 1, "", number)
    places = [
        Place(
            job.master_address, job.master_port, rank == 0, lab.name, host, of_rank(job, rank, {})
        )
        for rank, host in enumerate(job.hosts)
    ]
    return _start_at(places, backend)


def _start_at(places: list[Place], backend: str) -> list[Start]:
    """One rank at each place."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes, connections = [], []
    for rank, place in enumerate(places):
        ours, theirs = context.Pipe()
        arguments = (theirs, place, backend, rank, len(places))
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
