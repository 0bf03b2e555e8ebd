"""FSDP2 with distributed checkpoints, as in torchtitan; a run goes on with any number of ranks.

torchrun --nproc-per-node 4 examples/frameworks/fsdp2_checkpoint.py --folder /tmp/digits
torchrun --nproc-per-node 2 examples/frameworks/fsdp2_checkpoint.py --folder /tmp/digits --epochs 8

Each rank writes its part of weights and optimizer, beside the next epoch. A checkpoint is there
when all of it is: its file `.metadata` comes last.
"""

import argparse
from pathlib import Path

import digits
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler


class Training(Stateful):
    """A sharded model, its optimizer, and how many epochs it has had."""

    def __init__(self) -> None:
        torch.manual_seed(0)  # the same weights everywhere, before they are sharded
        self.model = digits.network()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.epoch = 0

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, object]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.epoch = state["epoch"]

    def run_epoch(self, loader: DataLoader) -> None:
        loader.sampler.set_epoch(self.epoch)
        self.model.train()
        for images, labels in loader:
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
        self.epoch += 1


def newest_checkpoint(folder: Path) -> Path | None:
    complete = [path.parent for path in folder.glob("epoch-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.removeprefix("epoch-")), default=None)


def main(folder: Path, epochs: int) -> None:
    dist.init_process_group("dmlcomm")
    train_set, test_set = digits.datasets()
    training = Training()
    checkpoint = newest_checkpoint(folder)
    if checkpoint is not None:
        dcp.load({"training": training}, checkpoint_id=checkpoint)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks begin at epoch {training.epoch}", flush=True)
    loader = DataLoader(train_set, batch_size=32, sampler=DistributedSampler(train_set))

    # Checkpoints are written by another thread, whose messages have a group of their own.
    writers, saved = dist.new_group(), None
    while training.epoch < epochs:
        training.run_epoch(loader)
        if saved is not None:
            saved.result()
        checkpoint = folder / f"epoch-{training.epoch}"
        saved = dcp.async_save(
            {"training": training}, checkpoint_id=checkpoint, process_group=writers
        )
    if saved is not None:
        saved.result()
    digits.report(digits.right_answers(training.model, test_set))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the same one on all hosts")
    parser.add_argument("--epochs", type=int, default=4)
    main(**vars(parser.parse_args()))
