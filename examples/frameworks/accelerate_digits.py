"""Accelerate on CPUs: it takes a process group that is there, whatever its backend.

torchrun --nproc-per-node 2 examples/frameworks/accelerate_digits.py
accelerate launch --multi_gpu --num_processes 2 examples/frameworks/accelerate_digits.py
accelerate launch --cpu examples/frameworks/accelerate_digits.py

The second line is what starts several processes, also where there are no GPUs. The third one, as
python alone, starts one process, which needs no group.
"""

import argparse

import digits
import torch
from accelerate import Accelerator
from torch.nn import functional
from torch.utils.data import DataLoader

import dmlcomm


def main(epochs: int) -> None:
    dmlcomm.init()  # before the Accelerator, which would make one with gloo
    accelerator = Accelerator(cpu=True)
    train_set, test_set = digits.datasets()
    model = digits.network()
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        DataLoader(train_set, batch_size=32, shuffle=True),
        DataLoader(test_set, batch_size=60),
    )
    for _ in range(epochs):
        for images, labels in train_loader:
            optimizer.zero_grad()
            accelerator.backward(functional.cross_entropy(model(images), labels))
            optimizer.step()

    right = []
    for images, labels in test_loader:
        with torch.no_grad():
            answers = model(images).argmax(1)
        right.append(accelerator.gather_for_metrics(answers == labels))
    digits.report(torch.cat(right).float().mean().item())
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    main(**vars(parser.parse_args()))
