"""The Trainer of Hugging Face on CPUs: it takes a process group that is there.

torchrun --nproc-per-node 2 examples/frameworks/transformers_digits.py
accelerate launch --multi_gpu --num_processes 2 examples/frameworks/transformers_digits.py

The second line starts several processes also where there are no GPUs; without a launcher there is
one, which needs no group. A vision transformer learns digits of 8 x 8, as 16 patches. `--curves
folder` writes curves for TensorBoard: the loss, and what NICs have sent and received.
"""

import argparse
import tempfile
from pathlib import Path

import digits
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, TensorDataset
from transformers import (
    EvalPrediction,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import dmlcomm


class Images(Dataset):
    """Of a data set with rows of 64 numbers, by the names of the model's arguments."""

    def __init__(self, rows: TensorDataset) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, label = self.rows[index]
        return {"pixel_values": image.view(1, 8, 8), "labels": label}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


def main(epochs: int, curves: Path | None) -> None:
    dmlcomm.init()  # before TrainingArguments, which would make one with gloo
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=10,
    )
    train_set, test_set = digits.datasets()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=ViTForImageClassification(config),
            args=TrainingArguments(
                output_dir=str(curves or folder),
                use_cpu=True,
                num_train_epochs=epochs,
                per_device_train_batch_size=32,
                per_device_eval_batch_size=60,
                learning_rate=3e-3,
                save_strategy="no",
                report_to="tensorboard" if curves else "none",
                logging_steps=50,
                disable_tqdm=True,
                ddp_find_unused_parameters=False,
            ),
            train_dataset=Images(train_set),
            eval_dataset=Images(test_set),
            compute_metrics=accuracy,
        )
        if dist.is_initialized():
            trainer.add_callback(dmlcomm.transformers_callback(trainer.log))
        trainer.train()
        digits.report(trainer.evaluate()["eval_accuracy"])
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--curves", type=Path, help="a folder for TensorBoard")
    main(**vars(parser.parse_args()))
