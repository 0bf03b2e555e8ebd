"""One rank of `benchmarks.prio.preempt`: rank 0 prints medians of seconds.

preempt_rank.py CASE BARRIER      a JSON object, a file
"""

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

import dmlcomm
from benchmarks.barrier import Barrier, open_barrier
from benchmarks.lab_worker import end, over_ranks
from dmlcomm.ps import Client, Server, ServerOptions

TIMEOUT = timedelta(minutes=5)
SERVER_RANK = 0


@dataclass(frozen=True)
class Case:
    """Sizes in bytes; see `benchmarks.prio.settings`.

    Attributes:
        together: tickets of the small and of the large operation, by the name of the turn.
        with_server: operations are those of workers with a parameter server on rank 0.
    """

    large: int
    small: int
    delay_s: float
    rounds: int
    together: dict[str, tuple[int, int]]
    with_server: bool


class Operations:
    """What is measured: a large operation, and a small one that begins later.

    Here there are none: the rank that is the server only comes to the barriers.

    Attributes:
        wrong: elements of results, so far.
    """

    wrong = 0

    def prepare(self) -> None:
        """Before a turn."""

    def start_large(self) -> tuple[Callable[[], bool], Callable[[], object]]:
        """Whether it has ended, and what waits for its end."""
        return lambda: True, lambda: None

    def run_small(self) -> None:
        """To its end."""

    def check(self) -> None:
        """After a turn of both."""

    def check_all(self) -> None:
        """After all turns."""


class AllReduces(Operations):
    """Of tensors of ones."""

    def __init__(self, case: Case, group: dist.ProcessGroup) -> None:
        self._group = group
        self._large = torch.ones(case.large // 4)
        self._small = torch.ones(case.small // 4)

    def prepare(self) -> None:
        self._large.fill_(1)

    def start_large(self) -> tuple[Callable[[], bool], Callable[[], object]]:
        work = dist.all_reduce(self._large, group=self._group, async_op=True)
        return work.is_completed, work.wait

    def run_small(self) -> None:
        self._small.fill_(1)
        dist.all_reduce(self._small, group=self._group)

    def check(self) -> None:
        expected = dist.get_world_size()
        self.wrong += int((self._large != expected).sum() + (self._small != expected).sum())


class Pushes(Operations):
    """Of a worker: a push, and a push_pull of another model."""

    def __init__(self, case: Case, client: Client) -> None:
        self._client = client
        self._large = torch.ones(case.large // 4)
        self._small = torch.ones(case.small // 4)
        self._sum = torch.empty_like(self._small)
        self._num_pushes = 0
        client.init("large", torch.zeros_like(self._large), rule="add", apply="push")
        client.init("small", torch.zeros_like(self._small), rule="assign", reduce="sum")

    def start_large(self) -> tuple[Callable[[], bool], Callable[[], object]]:
        self._num_pushes += 1
        future = self._client.push_async("large", self._large)
        return future.done, future.result

    def run_small(self) -> None:
        self._client.push_pull("small", self._small, out=self._sum)

    def check(self) -> None:
        self.wrong += int((self._sum != self._client.num_workers).sum())

    def check_all(self) -> None:
        self._client.barrier()
        expected = self._num_pushes * self._client.num_workers
        self.wrong += int((self._client.pull("large", None) != expected).sum())


class Measurement:
    """Operations alone, and beside each other, in turns."""

    def __init__(self, case: Case, operations: Operations, barrier: Barrier) -> None:
        self._case = case
        self._operations = operations
        self._barrier = barrier
        self.seconds: dict[str, list[float]] = {}

    def run(self) -> None:
        for _ in range(self._case.rounds + 1):  # the first is not counted
            self._apart("small_alone", self._operations.run_small)
            self._apart("large_alone", lambda: self._operations.start_large()[1]())
            for how, (small, large) in self._case.together.items():
                self._together(how, small, large)

    def _apart(self, name: str, operate: Callable[[], object]) -> None:
        self._operations.prepare()
        self._barrier.wait()
        begin = time.perf_counter()
        operate()
        self._note(name, begin)
        self._barrier.leave()

    def _together(self, how: str, small: int, large: int) -> None:
        self._operations.prepare()
        self._barrier.wait()
        begin = time.perf_counter()
        with dmlcomm.ticket(large):
            has_ended, wait = self._operations.start_large()
        time.sleep(self._case.delay_s)
        small_begin = time.perf_counter()
        with dmlcomm.ticket(small):
            self._operations.run_small()
        self._note(f"small_{how}", small_begin)
        large_s = time.perf_counter() - begin if has_ended() else None
        wait()
        self._note(f"both_{how}", begin)
        self.seconds.setdefault(f"large_{how}", []).append(
            large_s or self.seconds[f"both_{how}"][-1]
        )
        self._barrier.leave()
        self._operations.check()

    def _note(self, name: str, begin: float) -> None:
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)


@contextlib.contextmanager
def operations_of(case: Case) -> Iterator[Operations]:
    if not case.with_server:
        group = dist.new_group(backend="dmlcomm", timeout=TIMEOUT)
        yield AllReduces(case, group)
        dist.destroy_process_group(group)
        return
    address: list[str | None] = [None]
    is_server = dist.get_rank() == SERVER_RANK
    with contextlib.ExitStack() as stack:
        if is_server:
            host = psutil.net_if_addrs()["mgmt0"][0].address
            options = ServerOptions(f"{host}:0", workers=dist.get_world_size() - 1, insecure=True)
            address[0] = stack.enter_context(Server(options)).address
        dist.broadcast_object_list(address, SERVER_RANK)
        if is_server:
            yield Operations()
        else:
            with Client(str(address[0]), worker=dist.get_rank() - 1) as client:
                yield Pushes(case, client)
        dist.barrier()  # no worker needs the server any more


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    case = Case(**json.loads(sys.argv[1]))
    with operations_of(case) as operations:
        measurement = Measurement(case, operations, open_barrier(sys.argv[2], dist.get_rank()))
        measurement.run()
        found: dict[str, float] = {}
        for name, seconds in measurement.seconds.items():
            slowest, _ = over_ranks(seconds[1:], 0)
            found[name] = statistics.median(slowest.tolist())
        operations.check_all()
        _, found["wrong"] = over_ranks([0.0], operations.wrong)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end()
