"""The smallest data-parallel training with dmlcomm. Only the backend's name differs from any other.

torchrun --nproc-per-node 2 examples/ddp_minimal.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(backend: str, steps: int) -> None:
    dist.init_process_group(backend)  # torch before 2.14 needs `import dmlcomm` first
    torch.manual_seed(dist.get_rank())  # every rank has data of its own

    model = DistributedDataParallel(torch.nn.Linear(16, 1))  # rank 0's weights, on every rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = torch.linspace(-1, 1, 16)

    for step in range(steps):
        inputs = torch.randn(64, 16)
        loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()  # gradients are averaged over the ranks while they are computed
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
    parser.add_argument("--steps", type=int, default=100)
    main(**vars(parser.parse_args()))
