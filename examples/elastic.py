"""Training that survives the death of a rank by torchrun's elasticity: all begin again from a file.

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
torchrun --nproc-per-node 4 --max-restarts 3 examples/elastic.py --checkpoint elastic.pt

Without the first line, ranks that are started again meet at the store of before, and take what is
there for that of their peers.

When a rank dies, the others end with dmlcomm's PeerLostError, which names it, and torchrun starts
all of them again. On several hosts, `--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint HOST:PORT`
also lets hosts leave and join: the world that begins again may have another size.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(checkpoint: Path, steps: int, every: int, kill_at: int | None) -> None:
    dist.init_process_group("dmlcomm")  # torch before 2.14 needs `import dmlcomm` first
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin = 0
    if checkpoint.exists():  # the same file on all hosts
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    if rank == 0:
        print(f"life {life}: {dist.get_world_size()} ranks begin at step {begin}", flush=True)

    parallel = DistributedDataParallel(model)
    truth = torch.linspace(-1, 1, 16)
    for step in range(begin, steps):
        if step == kill_at and life == 0 and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(step * dist.get_world_size() + rank)
        inputs = torch.randn(64, 16)
        loss = torch.nn.functional.mse_loss(parallel(inputs).squeeze(1), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % every == 0:
            save(checkpoint, model, optimizer, step + 1)
    if rank == 0:
        print(f"step {steps - 1}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


def save(
    checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """The file is the old one or the new one, whatever dies meanwhile."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    unfinished = checkpoint.with_suffix(".new")
    torch.save(state, unfinished)
    unfinished.replace(checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps from one file to the next")
    parser.add_argument("--kill-at", type=int, help="a step at which a rank dies, once")
    main(**vars(parser.parse_args()))
