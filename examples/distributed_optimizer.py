"""Data-parallel training whose communication goes on while the next step has begun.

torchrun --nproc-per-node 2 examples/distributed_optimizer.py

The model is not wrapped: `dmlcomm.DistributedOptimizer` averages its gradients. docs/tickets.md
says what works with it.
"""

import argparse

import torch
import torch.distributed as dist

import dmlcomm


def main(schedule: str, steps: int) -> None:
    dist.init_process_group("dmlcomm")
    torch.manual_seed(dist.get_rank())  # every rank has data of its own

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.3)
    # Gives all ranks the weights of rank 0, too.
    optimizer = dmlcomm.DistributedOptimizer(optimizer, model=model, schedule=schedule)
    truth = torch.linspace(-0.3, 0.3, 16)

    for step in range(steps):
        inputs = torch.randn(64, 16)
        loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()  # gradients leave as they are computed
        if step == 0:  # clipped while they are large
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # does not wait: each module waits for its weights when it runs
        rates.step()
        if step == 0 or step == steps - 1:
            total = loss.detach()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {total.item() / dist.get_world_size():.6f}", flush=True)

    state = model.state_dict()  # makes the updates that wait
    assert all(value.isfinite().all() for value in state.values())
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", default="cross")
    parser.add_argument("--steps", type=int, default=120)
    main(**vars(parser.parse_args()))
