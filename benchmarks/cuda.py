"""all_reduce of CUDA tensors beside gloo, and what a DDP step does not hide, on one GPU.

    python -m benchmarks.cuda [--strict]

All ranks share the GPU; every contestant is measured in the same processes, one after the other.
``docs/numbers.md`` defines the figures. With --strict the exit code is 1 when a bar is missed.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bars import MIB, Verdict, table
from benchmarks.ranks import Ranks, Worker
from benchmarks.report import console, human_bytes
from examples.lenet import ddp_without_communication

# Contestant -> backend and device of its tensors. The last is no all_reduce.
OURS, ON_CPU, GLOO, COPIES = "dmlcomm", "dmlcomm, CPU tensors", "gloo", "copies"
CONTESTANTS = {
    OURS: ("dmlcomm", "cuda"),
    ON_CPU: ("dmlcomm", "cpu"),
    GLOO: ("gloo", "cuda"),
    COPIES: ("", "cuda"),
}
# Of 64 MiB: beside gloo, and beside the slower of copies and our CPU tensors. Of DDP: of gloo's.
JUDGED_BYTES, LEAST_SPEEDUP, LEAST_OF_BOUND, MOST_OF_GLOO = 64 * MIB, 3.0, 0.8, 0.5
SIZES = [1 << shift for shift in (10, 16, 20, 22, 24, 26, 28)]
WARMUP = 5
MIN_ITERATIONS, MAX_ITERATIONS = 5, 200

# A model with 128 MiB of gradients.
WIDTH, LAYERS, BATCH = 2048, 8, 1024
STEPS_PER_BLOCK = 8
LOCAL = "local"


def has_gpu() -> bool:
    return torch.cuda.is_available()


# --- on a rank ---


def time_calls(worker: Worker, contestant: str, num_bytes: int, iterations: int) -> list[float]:
    """Seconds of each call on this rank, until the GPU has the result."""
    call = (
        _copies(num_bytes) if contestant == COPIES else _all_reduce(worker, contestant, num_bytes)
    )
    is_on_gpu = CONTESTANTS[contestant][1] == "cuda"
    for _ in range(WARMUP):
        call()
    seconds = []
    for _ in range(iterations):
        torch.cuda.synchronize()
        worker.barrier()
        begin = time.perf_counter()
        call()
        if is_on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _all_reduce(worker: Worker, contestant: str, num_bytes: int) -> Callable[[], object]:
    backend, device = CONTESTANTS[contestant]
    group = worker.group(backend)
    tensor = torch.full((num_bytes // 4,), float(worker.rank), device=device)
    dist.all_reduce(tensor, group=group)
    total = sum(range(worker.num_ranks))
    if not bool((tensor == total).all()):
        raise RuntimeError(f"{contestant}: wrong sums of {num_bytes} bytes")
    return lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)


def _copies(num_bytes: int) -> Callable[[], object]:
    """A tensor goes to pinned memory while another one comes from there."""
    there, back = (torch.ones(num_bytes // 4).pin_memory() for _ in range(2))
    source, target = (torch.ones(num_bytes // 4, device="cuda") for _ in range(2))
    streams = [torch.cuda.Stream() for _ in range(2)]

    def call() -> None:
        with torch.cuda.stream(streams[0]):
            there.copy_(source, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            target.copy_(back, non_blocking=True)

    return call


def time_steps(worker: Worker, blocks: int) -> dict[str, list[float]]:
    """Milliseconds per step of every block on this rank, by backend."""
    torch.cuda.set_device(0)
    batch = torch.randn(BATCH, WIDTH, device="cuda")
    models = {
        name: DistributedDataParallel(_model(), process_group=worker.group(name))
        for name in (OURS, GLOO)
    }
    models[LOCAL] = ddp_without_communication(_model(), process_group=worker.group(OURS))
    milliseconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(blocks + 1):
        for name, model in models.items():
            milliseconds[name].append(_block(worker, model, batch))
    # The first block of each kind builds DDP's buckets and warms up.
    return {name: values[1:] for name, values in milliseconds.items()}


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()


def _block(worker: Worker, model: DistributedDataParallel, batch: torch.Tensor) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.cuda.synchronize()
    worker.barrier()
    begin = time.perf_counter()
    for _ in range(STEPS_PER_BLOCK):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    worker.barrier()
    return (time.perf_counter() - begin) * 1000 / STEPS_PER_BLOCK


# --- the tables ---


def measure_size(ranks: Ranks, num_bytes: int, seconds: float) -> dict[str, float]:
    """The median time of each contestant in seconds."""
    medians = {}
    for contestant in CONTESTANTS:
        trial = _slowest(ranks.call(time_calls, contestant, num_bytes, MIN_ITERATIONS))
        iterations = int(seconds / statistics.median(trial))
        iterations = max(MIN_ITERATIONS, min(MAX_ITERATIONS, iterations))
        times = _slowest(ranks.call(time_calls, contestant, num_bytes, iterations))
        medians[contestant] = statistics.median(times)
    return medians


def _slowest(per_rank: list[list[float]]) -> list[float]:
    return [max(iteration) for iteration in zip(*per_rank, strict=True)]


def table_of(results: dict[int, dict[str, float]]) -> Table:
    result = Table(title="all_reduce: times in ms", title_justify="left")
    for column in ("size", *CONTESTANTS, f"{GLOO} / {OURS}", f"max(copies, CPU) / {OURS}"):
        result.add_column(column, justify="right", no_wrap=True)
    for num_bytes, times in results.items():
        result.add_row(
            human_bytes(num_bytes),
            *(f"{times[name] * 1000:.2f}" for name in CONTESTANTS),
            f"{times[GLOO] / times[OURS]:.1f}",
            f"{_of_bound(times):.2f}",
        )
    return result


def _of_bound(times: dict[str, float]) -> float:
    return max(times[COPIES], times[ON_CPU]) / times[OURS]


def judge_all_reduce(num_ranks: int, times: dict[str, float]) -> Iterator[Verdict]:
    """The bars of one size, by the contestants' seconds."""
    detail = ", ".join(f"{name}: {1000 * seconds:.2f} ms" for name, seconds in times.items())
    for ratio, least, beside in (
        (times[GLOO] / times[OURS], LEAST_SPEEDUP, GLOO),
        (_of_bound(times), LEAST_OF_BOUND, "the slower of copies and CPU tensors"),
    ):
        bar, passed = f">= {least:g}x {beside}", ratio >= least
        name = f"all_reduce, {human_bytes(JUDGED_BYTES)}"
        yield Verdict(name, num_ranks, bar, f"{ratio:.2f}x", passed, detail)


def judge_steps(num_ranks: int, not_hidden_ms: dict[str, float]) -> Verdict:
    """The bar of what DDP does not hide, by backend."""
    ratio = not_hidden_ms[OURS] / not_hidden_ms[GLOO]
    detail = ", ".join(f"{name}: {ms:.1f} ms" for name, ms in not_hidden_ms.items())
    name, bar = "DDP, communication not hidden", f"<= {MOST_OF_GLOO:g}x {GLOO}"
    return Verdict(name, num_ranks, bar, f"{ratio:.2f}x", ratio <= MOST_OF_GLOO, detail)


def print_steps(per_rank: list[dict[str, list[float]]]) -> dict[str, float]:
    """What is not hidden of a step's communication, in milliseconds by backend."""
    medians = {
        name: statistics.median(_slowest([rank[name] for rank in per_rank])) for name in per_rank[0]
    }
    local_ms = medians.pop(LOCAL)
    gradients = human_bytes(4 * LAYERS * (WIDTH * WIDTH + WIDTH))
    console.print(f"DDP, {gradients} of gradients: {local_ms:.1f} ms without communication")
    not_hidden = {name: step_ms - local_ms for name, step_ms in medians.items()}
    for name, milliseconds in not_hidden.items():
        console.print(f"  {name}: communication not hidden {milliseconds:.1f} ms per step")
    return not_hidden


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case")
    parser.add_argument("--blocks", type=int, default=5, help="of DDP's steps")
    parser.add_argument("--only", choices=["all_reduce", "ddp"])
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    options = parser.parse_args()
    if not has_gpu():
        sys.exit("benchmarks.cuda: torch finds no GPU for CUDA on this machine; nothing measured")
    console.print(
        f"{torch.cuda.get_device_name(0)}, {options.ranks} ranks share it, "
        f"torch {torch.__version__}"
    )
    verdicts: list[Verdict] = []
    with Ranks(options.ranks, ["dmlcomm", "gloo"], {}) as ranks:
        if options.only != "ddp":
            results = {size: measure_size(ranks, size, options.seconds) for size in SIZES}
            console.print(table_of(results))
            verdicts += judge_all_reduce(options.ranks, results[JUDGED_BYTES])
        if options.only != "all_reduce":
            not_hidden = print_steps(ranks.call(time_steps, options.blocks))
            verdicts.append(judge_steps(options.ranks, not_hidden))
    console.print(table(verdicts))
    if options.strict and not all(verdict.passed for verdict in verdicts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
