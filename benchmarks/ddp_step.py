"""How much of DDP's communication a training step does not hide, per backend.

    python -m benchmarks.ddp_step --ranks 4

The model, batch and optimizer are the demo's. All backends run in the same processes; blocks of
steps with each of them and without communication alternate. ``docs/numbers.md`` defines what the
result means.
"""

import argparse
import statistics
import time

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ranks import Ranks, Worker
from benchmarks.report import console
from examples.lenet import IMAGE_SIZE, LeNet5, ddp_without_communication

BATCH_PER_RANK = 16
STEPS_PER_BLOCK = 8
LOCAL = "local"


def measure(num_ranks: int, backends: list[str], blocks: int) -> dict[str, float]:
    """Milliseconds of a step that are not hidden, per backend; and of a step without
    communication under "local"."""
    with Ranks(num_ranks, backends, {}) as ranks:
        per_rank = ranks.call(time_blocks, backends, blocks)
    medians = {}
    for name in per_rank[0]:
        slowest = [max(block) for block in zip(*(rank[name] for rank in per_rank), strict=True)]
        medians[name] = statistics.median(slowest)
    local = medians.pop(LOCAL)
    return {LOCAL: local} | {name: ms - local for name, ms in medians.items()}


def time_blocks(worker: Worker, backends: list[str], blocks: int) -> dict[str, list[float]]:
    """Milliseconds per step of every block on this rank."""
    torch.manual_seed(worker.rank)
    batch = (
        torch.randn(BATCH_PER_RANK, 1, IMAGE_SIZE, IMAGE_SIZE),
        torch.randint(10, (BATCH_PER_RANK,)),
    )
    models = {b: DistributedDataParallel(LeNet5(), process_group=worker.group(b)) for b in backends}
    group = worker.group(backends[0])
    models[LOCAL] = ddp_without_communication(LeNet5(), process_group=group)
    milliseconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(blocks + 1):
        for name, model in models.items():
            milliseconds[name].append(_block(worker, model, batch))
    # The first block of each kind builds DDP's buckets and warms up.
    return {name: values[1:] for name, values in milliseconds.items()}


def _block(worker: Worker, model: DistributedDataParallel, batch) -> float:
    images, labels = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    worker.barrier()
    begin = time.perf_counter()
    for _ in range(STEPS_PER_BLOCK):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    worker.barrier()
    return (time.perf_counter() - begin) * 1000 / STEPS_PER_BLOCK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backends", default="dmlcomm,gloo")
    parser.add_argument("--blocks", type=int, default=8)
    options = parser.parse_args()
    result = measure(options.ranks, options.backends.split(","), options.blocks)
    console.print(f"step without communication: {result.pop(LOCAL):.1f} ms")
    for backend, not_hidden_ms in result.items():
        console.print(f"{backend}: communication not hidden {not_hidden_ms:.1f} ms per step")


if __name__ == "__main__":
    main()
