"""Fully sharded training (FSDP2) on CPU: every rank keeps its part of each parameter only.

torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

WIDTH = 64
NUM_BLOCKS = 3


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(functional.gelu(self.up(self.norm(inputs))))


def main(backend: str, steps: int) -> None:
    dist.init_process_group(backend)  # torch before 2.14 needs `import dmlcomm` first
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)  # the same weights everywhere, before they are sharded

    model = torch.nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)), torch.nn.Linear(WIDTH, 1))
    # Each block is gathered when it runs and freed after: all_gather forward and backward,
    # reduce_scatter for its gradients.
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    torch.manual_seed(1 + dist.get_rank())  # every rank has data of its own
    for step in range(steps):
        inputs = torch.randn(32, WIDTH)
        loss = functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0 or step == steps - 1:
            total = loss.detach()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {total.item() / dist.get_world_size():.6f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="dmlcomm")
    parser.add_argument("--steps", type=int, default=60)
    main(**vars(parser.parse_args()))
