"""Training between hosts with slow NICs that talk to each other once in many steps (DiLoCo).

torchrun --nnodes 2 --nproc-per-node 2 ... examples/diloco.py     on each host

Trains the demo's model on its digits twice, with plain DDP and with DiLoCo, on the same samples,
and prints accuracy, bytes between hosts and time of both.

With DiLoCo the ranks of a host train as ever: DDP in a process group of their own, which is fast.
After each `--inner-steps` steps all hosts average by how much they have moved from their common
weights, and an outer optimizer makes a step of it: SGD with Nesterov's momentum. One step in 11
crosses the network, with bfloat16, so a 22nd of the bytes. Method: Douillard et al., DiLoCo, 2023.
"""

import argparse
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from demo_lenet import SEED, Trainer

import dmlcomm

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


class OuterOptimizer:
    """The weights that all hosts have in common, and the step that they make together.

    Args:
        model: of this rank, with the same weights on all ranks.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._common = [p.detach().clone() for p in self._parameters]
        self._optimizer = torch.optim.SGD(
            self._common, lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
        )

    @torch.no_grad()
    def step(self) -> None:
        """All ranks call it. Afterwards they have equal weights."""
        pairs = list(zip(self._common, self._parameters, strict=True))
        moved = torch.cat([(common - own).flatten() for common, own in pairs])
        moved = moved.div_(dist.get_world_size()).bfloat16()
        dist.all_reduce(moved)  # within hosts first, then over all NICs
        parts = moved.float().split([common.numel() for common in self._common])
        for (common, _), part in zip(pairs, parts, strict=True):
            common.grad = part.view_as(common)
        self._optimizer.step()
        for common, own in pairs:
            own.copy_(common)


@dataclass(frozen=True)
class Result:
    """``sent_bytes``: by all ranks together, to other hosts."""

    accuracy: float
    sent_bytes: int
    seconds: float


def train(trainer: Trainer, epochs: int, outer: OuterOptimizer | None, inner_steps: int) -> Result:
    """Plain DDP without an outer optimizer."""
    num_steps, done = epochs * trainer.steps_per_epoch, 0
    dist.barrier()
    before, begin = sent_to_other_hosts(), time.perf_counter()
    for epoch in range(epochs):
        for images, labels in trainer.batches(epoch):
            trainer.step(images, labels)
            trainer.schedule.step()
            done += 1
            if outer and (done % inner_steps == 0 or done == num_steps):
                outer.step()
    dist.barrier()
    seconds, sent = time.perf_counter() - begin, sent_to_other_hosts() - before
    total = torch.tensor(sent)
    dist.all_reduce(total)
    check_weights(trainer.model)
    return Result(trainer.accuracy(trainer.test_set), int(total), seconds)


def sent_to_other_hosts() -> int:
    return sum(rail.bytes_sent for rail in dmlcomm.rails() if rail.interface != "local")


def check_weights(model: torch.nn.Module) -> None:
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    of_rank_0 = weights.clone()
    dist.broadcast(of_rank_0, src=0)
    assert torch.equal(weights, of_rank_0), "ranks have different weights"


def main(epochs: int, inner_steps: int, ranks_per_host: int, seed: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("dmlcomm")
    host, _ = dist.new_subgroups(ranks_per_host)
    plain = train(Trainer(epochs, seed=seed), epochs, None, inner_steps)
    trainer = Trainer(epochs, seed=seed, group=host)
    diloco = train(trainer, epochs, OuterOptimizer(trainer.model), inner_steps)
    if dist.get_rank() == 0:
        hosts = dist.get_world_size() // ranks_per_host
        print(f"{epochs} epochs on {hosts} hosts with {ranks_per_host} ranks each")
        print("         accuracy   sent between hosts      time")
        for name, result in (("DDP", plain), ("DiLoCo", diloco)):
            sent = f"{result.sent_bytes / 1e6:.1f} MB"
            print(f"{name:8} {result.accuracy:8.2%} {sent:>20} {result.seconds:7.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--inner-steps", type=int, default=11)
    parser.add_argument(
        "--ranks-per-host", type=int, default=int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    )
    parser.add_argument("--seed", type=int, default=SEED)
    main(**vars(parser.parse_args()))
