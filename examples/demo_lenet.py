"""Trains LeNet-5 on handwritten digits with DDP, then times its steps. `make demo` runs it twice.

torchrun --nproc-per-node 4 examples/demo_lenet.py --backend dmlcomm --output result.json

``--hook int8`` sends fewer bytes (docs/hooks.md).
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from lenet import HOOKS, Digits, LeNet5, ddp_without_communication, load_digits
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

SEED = 7
GLOBAL_BATCH = 64
LEARNING_RATE = 0.02
MOMENTUM = 0.9

STEPS_PER_BLOCK = 8  # that is timed


class Trainer:
    """One rank's model, data and optimizer.

    Args:
        epochs: that follow.
        hook: a key of HOOKS.
        seed: of the first weights, and of the order of the data.
        group: the ranks whose gradients are averaged; all if None.
    """

    def __init__(
        self,
        epochs: int,
        hook: str = "none",
        seed: int = SEED,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.seed = seed
        self.train_set, self.test_set = load_digits(SEED)
        self.model = DistributedDataParallel(LeNet5(), process_group=group)
        HOOKS[hook](self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM
        )
        self.steps_per_epoch = len(self.train_set) // GLOBAL_BATCH
        # To zero, so that the last epochs settle instead of amplifying the last bits of the sums.
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=epochs * self.steps_per_epoch
        )

    def batches(self, epoch: int):
        """This rank's part of every global batch; the same shuffle on all ranks."""
        shuffle = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(len(self.train_set), generator=shuffle)
        for batch in order.split(GLOBAL_BATCH)[: self.steps_per_epoch]:
            yield self.train_set[_my_part(batch)]

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        return train_step(self.model, self.optimizer, images, labels)

    @torch.no_grad()
    def accuracy(self, digits: Digits) -> float:
        """Over the whole set, every rank counting its part."""
        images, labels = digits[_my_part(torch.arange(len(digits)))]
        correct = (self.model.module(images).argmax(1) == labels).sum()
        dist.all_reduce(correct)
        return correct.item() / len(digits)


def train_step(model, optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def _my_part(indices: torch.Tensor) -> torch.Tensor:
    return indices[dist.get_rank() :: dist.get_world_size()]


def mean_over_ranks(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(trainer: Trainer, epochs: int, backend: str) -> list[dict]:
    """One record per epoch: mean training loss, test accuracy, seconds since the start."""
    history = []
    begin = time.perf_counter()
    with _progress() as progress:
        task = progress.add_task(backend, total=epochs * trainer.steps_per_epoch, status="")
        for epoch in range(epochs):
            losses = []
            for images, labels in trainer.batches(epoch):
                losses.append(trainer.step(images, labels))
                trainer.schedule.step()
                progress.advance(task)
            record = {
                "loss": mean_over_ranks(statistics.mean(losses)),
                "accuracy": trainer.accuracy(trainer.test_set),
                "seconds": time.perf_counter() - begin,
            }
            history.append(record)
            status = f"loss {record['loss']:.4f}, accuracy {record['accuracy']:.2%}"
            progress.update(task, status=status)
    return history


def _progress() -> Progress:
    columns = "[progress.description]{task.description:>8}", "{task.fields[status]}"
    return Progress(
        TextColumn(columns[0]),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn(columns[1]),
        disable=dist.get_rank() != 0,
    )


def time_steps(trainer: Trainer, blocks: int) -> dict:
    """Milliseconds of a step with and without communication; medians over blocks, slowest rank.

    The two kinds of blocks alternate, so that other load on the machine hits both alike; there are
    ``blocks`` of each.
    """
    batch = next(trainer.batches(epoch=0))
    local_model = ddp_without_communication(copy.deepcopy(trainer.model.module))
    local_optimizer = torch.optim.SGD(local_model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    # DDP arranges its buckets, and the optimizer its momentum, in the first step.
    train_step(local_model, local_optimizer, *batch)
    communicating, local = [], []
    for _ in range(blocks):
        communicating.append(_time_block(trainer.model, trainer.optimizer, batch))
        local.append(_time_block(local_model, local_optimizer, batch))
    step_ms, local_ms = statistics.median(communicating), statistics.median(local)
    return {
        "step_ms": step_ms,
        "local_step_ms": local_ms,
        "not_hidden_ms": step_ms - local_ms,
    }


def _time_block(model, optimizer, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Milliseconds per step of a block that all ranks start and end together."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(STEPS_PER_BLOCK):
        train_step(model, optimizer, *batch)
    dist.barrier()
    seconds = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item() * 1000 / STEPS_PER_BLOCK


def main(
    backend: str, epochs: int, hook: str, seed: int, timed_blocks: int, output: Path | None
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    trainer = Trainer(epochs, hook, seed)
    history = train(trainer, epochs, backend)
    result = {
        "backend": backend,
        "num_ranks": dist.get_world_size(),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "history": history,
        **time_steps(trainer, timed_blocks),
    }
    if dist.get_rank() == 0 and output:
        output.write_text(json.dumps(result, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="dmlcomm")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--hook", choices=HOOKS, default="none", help="dmlcomm's alone")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--timed-blocks", type=int, default=8, help=f"of {STEPS_PER_BLOCK} steps")
    parser.add_argument("--output", type=Path, help="where rank 0 writes its results as JSON")
    main(**vars(parser.parse_args()))
    # gloo's threads may outlive the interpreter's modules, and abort a script that is done.
    sys.stdout.flush()
    os._exit(0)
