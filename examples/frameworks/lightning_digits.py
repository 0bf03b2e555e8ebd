"""Lightning: strategies take the name of the backend.

torchrun --nproc-per-node 2 examples/frameworks/lightning_digits.py --strategy ddp

`fsdp2` is FSDP2, by Lightning's ModelParallelStrategy. FSDPStrategy takes the same argument; torch
has it on GPUs only.
"""

import argparse
import os

import digits
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader

STRATEGIES = {
    "ddp": DDPStrategy,
    "fsdp2": ModelParallelStrategy,
}


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        images, labels = batch
        right = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)  # over all ranks


def main(strategy: str, epochs: int) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=STRATEGIES[strategy](process_group_backend="dmlcomm"),
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_set, test_set = digits.datasets()
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    trainer.fit(Digits(), train_loader, DataLoader(test_set, batch_size=60))
    digits.report(trainer.callback_metrics["accuracy"].item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp")
    parser.add_argument("--epochs", type=int, default=4)
    main(**vars(parser.parse_args()))
