"""Ray Train: TorchConfig takes the name of the backend, and Ray starts the ranks.

python examples/frameworks/ray_digits.py --ranks 2
"""

import argparse

import digits
import ray
import ray.train.torch
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn import functional
from torch.utils.data import DataLoader


def train(config: dict[str, int]) -> None:
    """What each rank does; Ray has made the process group."""
    train_set, test_set = digits.datasets()
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)  # this rank's part
    model = ray.train.torch.prepare_model(digits.network())  # DDP
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(config["epochs"]):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    digits.report(digits.right_answers(model, test_set))


def main(ranks: int, epochs: int) -> None:
    ray.init(num_cpus=ranks)  # or the address of a cluster
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=ranks),
        torch_config=TorchConfig(backend="dmlcomm"),
    )
    trainer.fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    main(**vars(parser.parse_args()))
