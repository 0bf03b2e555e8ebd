"""Training between hosts with slow NICs that talk to each other once in many steps (DiLoCo).

torchrun --nnodes 2 --nproc-per-node 4 ... examples/diloco.py     on each host

The ranks of a host train as ever: DDP in a process group of their own, which is fast. After each
`--inner-steps` steps all hosts average by how much they have moved from their common weights, and
an outer optimizer makes a step of it: SGD with Nesterov's momentum. One step in 20 crosses the
network, with bfloat16, so a fortieth of the bytes. Method: Douillard et al., DiLoCo, 2023.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


class OuterOptimizer:
    """The weights that all hosts have in common, and the step that they make together.

    Args:
        model: of this rank, with the same weights on all ranks.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._common = [p.detach().clone() for p in self._parameters]
        self._optimizer = torch.optim.SGD(
            self._common, lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
        )

    @torch.no_grad()
    def step(self) -> None:
        """All ranks call it. Afterwards they have equal weights."""
        pairs = list(zip(self._common, self._parameters, strict=True))
        moved = torch.cat([(common - own).flatten() for common, own in pairs])
        moved = moved.div_(dist.get_world_size()).bfloat16()
        dist.all_reduce(moved)  # within hosts first, then over all NICs
        parts = moved.float().split([common.numel() for common in self._common])
        for (common, _), part in zip(pairs, parts, strict=True):
            common.grad = part.view_as(common)
        self._optimizer.step()
        for common, own in pairs:
            own.copy_(common)


def main(rounds: int, inner_steps: int, ranks_per_host: int) -> None:
    dist.init_process_group("dmlcomm")
    host, _ = dist.new_subgroups(ranks_per_host)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(net, process_group=host)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    outer = OuterOptimizer(net)
    truth = torch.linspace(-0.3, 0.3, 16)
    torch.manual_seed(2 + dist.get_rank())  # every rank has data of its own

    for number in range(rounds):
        for _ in range(inner_steps):
            inputs = torch.randn(64, 16)
            loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
            inner.zero_grad()
            loss.backward()  # inside the host
            inner.step()
        outer.step()  # between hosts
        total = loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"round {number}: loss {total.item() / dist.get_world_size():.6f}", flush=True)

    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    of_rank_0 = weights.clone()
    dist.broadcast(of_rank_0, src=0)
    assert torch.equal(weights, of_rank_0), "ranks have different weights"
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument(
        "--ranks-per-host", type=int, default=int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    )
    main(**vars(parser.parse_args()))
