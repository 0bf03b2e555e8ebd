"""Ranks: processes of one host that hold a process group per backend and measure on request.

All backends live in the same processes and are measured in turn, so that noise of the machine hits
them alike. Between requests the ranks sleep.
"""

import gc
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache

import torch
import torch.distributed as dist

from benchmarks.barrier import Barrier
from benchmarks.operations import OPERATIONS, Buffers, Case

# A pseudo backend: every rank copies as many bytes of its own memory as the operation must at least
# move to it. See docs/numbers.md, "bounds".
MEMORY_COPY = "memcpy"

# Far above what any case takes; a rank that hangs ends the run instead of blocking it.
REQUEST_TIMEOUT_S = 300


class RankError(RuntimeError):
    """A rank failed; the text holds its traceback."""


class Worker:
    """What runs inside one rank."""

    def __init__(self, rank: int, num_ranks: int, backends: list[str], store_path: str, slots):
        self.rank = rank
        self.num_ranks = num_ranks
        self._barrier = Barrier(slots, rank)
        # Each backend has tensors of its own, since it may move them to huge pages; those of the
        # last case are kept.
        self._buffers = lru_cache(maxsize=len(backends))(self._make_buffers)
        self._copy_buffers = lru_cache(maxsize=1)(self._make_copy_buffers)
        torch.set_num_threads(1)
        store = dist.FileStore(store_path, num_ranks)
        timeout = timedelta(seconds=REQUEST_TIMEOUT_S)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=num_ranks, timeout=timeout
        )
        self._groups = {
            backend: dist.new_group(backend=backend, timeout=timeout)
            for backend in backends
            if backend != MEMORY_COPY
        }

    def _make_buffers(self, _backend: str, case: Case) -> Buffers:
        return OPERATIONS[case.operation].buffers(case, self.rank)

    def _make_copy_buffers(self, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        factor = OPERATIONS[case.operation].wire_factor(self.num_ranks)
        num_bytes = int(case.count * case.dtype.itemsize * factor)
        return torch.ones(num_bytes, dtype=torch.uint8), torch.ones(num_bytes, dtype=torch.uint8)

    def _call(self, backend: str, case: Case):
        """A function without arguments that does the operation once."""
        if backend == MEMORY_COPY:
            source, target = self._copy_buffers(case)
            return lambda: target.copy_(source)
        run, group = OPERATIONS[case.operation].run, self._groups[backend]
        buffers = self._buffers(backend, case)
        return lambda: run(buffers, case, group)

    def measure(self, backend: str, case: Case, warmup: int, iterations: int) -> list[float]:
        """Seconds of each iteration on this rank, a barrier before each."""
        if backend != MEMORY_COPY:
            OPERATIONS[case.operation].fill(self._buffers(backend, case), case, self.rank, seed=0)
        call = self._call(backend, case)
        for _ in range(warmup):
            call()
        seconds = []
        gc.disable()
        for _ in range(iterations):
            self._barrier.wait()
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        gc.enable()
        return seconds

    def check(self, backend: str, case: Case, seed: int) -> int:
        """How many elements of this rank's result are wrong, with inputs not used before."""
        if backend == MEMORY_COPY:
            return 0
        operation, buffers = OPERATIONS[case.operation], self._buffers(backend, case)
        operation.fill(buffers, case, self.rank, seed)
        self._barrier.wait()
        operation.run(buffers, case, self._groups[backend])
        return operation.count_wrong(buffers, case, self.rank, seed)

    def call(self, function, *arguments):
        """Runs ``function(worker, *arguments)``: for benchmarks with a loop of their own."""
        return function(self, *arguments)

    def add_group(self, backend: str) -> None:
        """Of a backend that these ranks were not started with."""
        timeout = timedelta(seconds=REQUEST_TIMEOUT_S)
        self._groups[backend] = dist.new_group(backend=backend, timeout=timeout)

    def group(self, backend: str) -> dist.ProcessGroup:
        return self._groups[backend]

    def barrier(self) -> None:
        """All ranks meet; no backend takes part."""
        self._barrier.wait()

    def close(self) -> None:
        self._barrier.wait()
        for group in self._groups.values():
            dist.destroy_process_group(group)
        dist.destroy_process_group()


def _serve(rank, connection, environment, arguments) -> None:
    """Main of a rank: answers (method, arguments) with ("ok", result) or ("error", traceback)."""
    os.environ.update(environment)
    try:
        worker = Worker(rank, *arguments)
        connection.send(("ok", None))
        while (request := connection.recv()) is not None:
            method, parameters = request
            connection.send(("ok", getattr(worker, method)(*parameters)))
        worker.close()
        connection.send(("ok", None))
    except EOFError:
        pass  # the parent is gone
    except BaseException:
        connection.send(("error", traceback.format_exc()))


class Ranks:
    """``num_ranks`` processes; a context manager. Every request goes to all of them."""

    def __init__(self, num_ranks: int, backends: list[str], environment: dict[str, str]):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.ranks"])
        self._folder = tempfile.TemporaryDirectory(prefix="dmlcomm-bench-")
        # gloo would resolve the host's name and may fail; all ranks are on this host.
        environment = {"GLOO_SOCKET_IFNAME": "lo"} | environment
        slots = context.RawArray("q", num_ranks)
        arguments = (num_ranks, backends, os.path.join(self._folder.name, "store"), slots)
        self.num_ranks = num_ranks
        self._some_may_die = False
        self._processes, self._connections = [], []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, theirs, environment, arguments), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def __enter__(self) -> "Ranks":
        try:
            self._answers(range(self.num_ranks))
        except BaseException:
            self._end(kill=True)
            raise
        return self

    def __exit__(self, error_type, *_) -> None:
        failed = True
        try:
            if error_type is None and not self._some_may_die:
                self._request(None)
                failed = False
        finally:
            self._end(kill=failed)

    def _end(self, kill: bool) -> None:
        for process in self._processes:
            if kill:
                process.kill()
            process.join()
        self._folder.cleanup()

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def measure(self, backend: str, case: Case, warmup: int, iterations: int) -> list[float]:
        """Seconds of each iteration: the slowest rank's."""
        per_rank = self._request(("measure", (backend, case, warmup, iterations)))
        return [max(iteration) for iteration in zip(*per_rank, strict=True)]

    def check(self, backend: str, case: Case, seed: int) -> int:
        """Wrong elements over all ranks."""
        return sum(self._request(("check", (backend, case, seed))))

    def call(self, function, *arguments) -> list:
        """What ``function(worker, *arguments)`` returns on each rank."""
        return self._request(("call", (function, *arguments)))

    def call_until_some_die(self, survivors: Sequence[int], function, *arguments) -> list:
        """The same of ``survivors``; the others may die. It is the last call of these ranks."""
        self._some_may_die = True
        self._send(("call", (function, *arguments)))
        return self._answers(survivors)

    def _request(self, request) -> list:
        self._send(request)
        return self._answers(range(self.num_ranks))

    def _send(self, request) -> None:
        for connection in self._connections:
            connection.send(request)

    def _answers(self, ranks: Sequence[int]) -> list:
        results = []
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        for rank in ranks:
            connection = self._connections[rank]
            if not connection.poll(max(0, deadline - time.monotonic())):
                raise RankError(f"rank {rank} did not answer within {REQUEST_TIMEOUT_S} s")
            try:
                kind, result = connection.recv()
            except EOFError:
                raise RankError(f"rank {rank} ended unexpectedly") from None
            if kind == "error":
                raise RankError(f"rank {rank} failed:\n{result}")
            results.append(result)
        return results
