"""LeNet-5 in the size of the BML paper (3,274,634 parameters), digits for it, and hooks of DDP."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dmlcomm import hooks

IMAGE_SIZE = 28


class LeNet5(nn.Sequential):
    """Two convolutions, two fully connected layers; images of 1 x 28 x 28 to 10 logits."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 1024),
            nn.ReLU(),
            nn.Linear(1024, 10),
        )


def ddp_without_communication(model: nn.Module, **options) -> DistributedDataParallel:
    """DDP that copies gradients to buckets and back as always, and leaves the buckets as they are.

    What a step takes beyond one of this is what communication costs it.
    """
    ddp = DistributedDataParallel(model, **options)
    ddp.register_comm_hook(state=None, hook=_leave_as_it_is)
    return ddp


def _leave_as_it_is(_state, bucket) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _quantized(model: DistributedDataParallel, codes: str) -> None:
    model.register_comm_hook(hooks.QuantizeState(model, codes), hooks.quantize_hook)


# How gradients travel: as DDP sends them, or by a hook.
HOOKS = {
    "none": lambda model: None,
    "bf16": lambda model: model.register_comm_hook(None, hooks.bf16_hook),
    "int8": lambda model: _quantized(model, "int8"),
    "fp8": lambda model: _quantized(model, "fp8"),
}


@dataclass(frozen=True)
class Digits:
    """Images N x 1 x 28 x 28, scaled to mean 0 and deviation 1, and labels N."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def load_digits(seed: int) -> tuple[Digits, Digits]:
    """scikit-learn's 1,797 scanned digits, upsampled from 8 x 8; a fifth of them to test."""
    from sklearn.datasets import load_digits as load

    raw = load()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1)
    images = nn.functional.interpolate(images, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear")
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(raw.target)

    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order.split([len(order) * 4 // 5, len(order) - len(order) * 4 // 5])
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])
