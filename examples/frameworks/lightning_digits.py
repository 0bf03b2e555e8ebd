"""Lightning: strategies take the name of the backend.

torchrun --nproc-per-node 2 examples/frameworks/lightning_digits.py --strategy ddp

`fsdp2` is FSDP2, by Lightning's ModelParallelStrategy. FSDPStrategy takes the same argument; torch
has it on GPUs only. `--curves folder` writes some for TensorBoard: the loss, and what NICs have
sent and received.
"""

import argparse
import os
from pathlib import Path

import digits
import lightning
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader

import dmlcomm

STRATEGIES = {
    "ddp": lambda _ranks: DDPStrategy(process_group_backend="dmlcomm"),
    # By default it shards between hosts only, and leaves those of a host to tensor parallelism.
    "fsdp2": lambda ranks: ModelParallelStrategy(
        data_parallel_size=ranks, tensor_parallel_size=1, process_group_backend="dmlcomm"
    ),
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
        loss = functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        images, labels = batch
        right = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)  # over all ranks


def main(strategy: str, epochs: int, curves: Path | None) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=STRATEGIES[strategy](int(os.environ["WORLD_SIZE"])),
        max_epochs=epochs,
        logger=TensorBoardLogger(curves) if curves else False,
        log_every_n_steps=10,
        callbacks=[dmlcomm.lightning_callback()],
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
    parser.add_argument("--curves", type=Path, help="a folder for TensorBoard")
    main(**vars(parser.parse_args()))
