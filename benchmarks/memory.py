"""Memory of a rank: what a process group needs beyond the user's tensors, and whether it grows.

    python -m benchmarks.memory --ranks 4 --operations 10000

``docs/numbers.md`` defines the result.
"""

import argparse
import ctypes
import gc
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.operations import OPERATIONS, Case
from benchmarks.ranks import Ranks, Worker
from benchmarks.report import console

NAMES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
SIZES = (1 << 10, 64 << 10, 1 << 20, 8 << 20)
# One large operation for this many small ones keeps the run short.
LARGE_EVERY = 20
MIB = 1 << 20


@dataclass(frozen=True)
class Usage:
    resident_bytes: int
    threads: int
    descriptors: int


@dataclass(frozen=True)
class Memory:
    """Worst rank. ``needed_bytes``: the group and its first operations; ``grown_bytes``: all later
    operations."""

    needed_bytes: int
    grown_bytes: int
    grown_threads: int
    grown_descriptors: int


def measure(num_ranks: int, backend: str, operations: int) -> Memory:
    with Ranks(num_ranks, ["gloo"], {}) as ranks:
        per_rank = ranks.call(run, backend, operations)
    return Memory(
        needed_bytes=max(w.resident_bytes - b.resident_bytes for b, w, _ in per_rank),
        grown_bytes=max(e.resident_bytes - w.resident_bytes for _, w, e in per_rank),
        grown_threads=max(e.threads - w.threads for _, w, e in per_rank),
        grown_descriptors=max(e.descriptors - w.descriptors for _, w, e in per_rank),
    )


def run(worker: Worker, backend: str, operations: int) -> tuple[Usage, Usage, Usage]:
    """Usage before the group exists, after the first operations, and after all."""
    cases = [Case(n, size, torch.float32, worker.num_ranks) for size in SIZES for n in NAMES]
    buffers = [OPERATIONS[case.operation].buffers(case, worker.rank) for case in cases]
    for case, tensors in zip(cases, buffers, strict=True):
        OPERATIONS[case.operation].fill(tensors, case, worker.rank, seed=0)
    # What torch itself loads at the first collectives is not the backend's: let gloo cause it.
    _run_operations(worker.group("gloo"), cases, buffers, 2 * len(cases))
    before = usage()
    group = dist.new_group(backend=backend)
    _run_operations(group, cases, buffers, operations // 2)  # every buffer is touched by then
    warm = usage()
    _run_operations(group, cases, buffers, operations)
    end = usage()
    dist.destroy_process_group(group)
    return before, warm, end


def _run_operations(group: dist.ProcessGroup, cases: list[Case], buffers: list, count: int) -> None:
    small = [i for i, case in enumerate(cases) if case.size_bytes < MIB]
    large = [i for i, case in enumerate(cases) if case.size_bytes >= MIB]
    for number in range(count):
        kind = large if number % LARGE_EVERY == 0 else small
        index = kind[number // (LARGE_EVERY if kind is large else 1) % len(kind)]
        OPERATIONS[cases[index].operation].run(buffers[index], cases[index], group)


def usage() -> Usage:
    """This process's, after garbage is returned to the system. Shared pages count on every rank."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        resident_pages = int(file.read().split()[1])
    return Usage(
        resident_bytes=resident_pages * os.sysconf("SC_PAGESIZE"),
        threads=len(os.listdir("/proc/self/task")),
        descriptors=len(os.listdir("/proc/self/fd")),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="dmlcomm")
    parser.add_argument("--operations", type=int, default=10_000)
    options = parser.parse_args()
    memory = measure(options.ranks, options.backend, options.operations)
    console.print(
        f"{options.backend}, {options.ranks} ranks: {memory.needed_bytes / MIB:.1f} MiB needed; "
        f"after {options.operations} more operations {memory.grown_bytes / MIB:+.2f} MiB, "
        f"{memory.grown_threads:+d} threads, {memory.grown_descriptors:+d} descriptors"
    )


if __name__ == "__main__":
    main()
