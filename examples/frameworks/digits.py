"""What the examples train: a small network, on scikit-learn's 1,797 scanned digits."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Images (64 float32 each, mean 0 and deviation 1) and labels; a fifth of them to test."""
    raw = load_digits()
    images = torch.tensor(raw.data, dtype=torch.float32)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(raw.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network() -> nn.Sequential:
    """64 numbers to 10 logits."""
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def right_answers(model: nn.Module, test_set: TensorDataset) -> float:
    """The share over all ranks, of which each takes its part of the test set."""
    images, labels = test_set.tensors
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    model.eval()
    with torch.no_grad():
        correct = (model(images[mine]).argmax(1) == labels[mine]).sum()
    dist.all_reduce(correct)
    return correct.item() / len(labels)


def report(accuracy: float) -> None:
    """One line, by rank 0 or by the only process."""
    who = "no process group"
    if dist.is_initialized():
        who = f"{dist.get_backend()}, {dist.get_world_size()} ranks"
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"{who}: {accuracy:.1%} of the test set are right", flush=True)
