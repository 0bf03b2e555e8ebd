"""A replica of a training that others leave and join, step by step, with torchft and dmlcomm.

pip install torchft-nightly
torchft_lighthouse --min_replicas 1 --join_timeout_ms 1000 &
export TORCHFT_LIGHTHOUSE=http://HOST:29510
python examples/torchft_replica.py      # one for each replica, at any time, on any host

The replicas that are there at a step average their gradients over dmlcomm. When one dies, the
others skip that step and go on without it. One that comes, or comes back, gets the weights of the
others. `reconfigure` of the process group, which torch has from 2.15 on, gives it other ranks.
"""

import argparse
import os
import signal
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft


def main(name: str, steps: int, kill_at: int | None) -> None:
    # Its own store, so that no replica needs that of another one which may die.
    host = socket.gethostname()
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("dmlcomm", store=store, rank=0, world_size=1, enable_reconfigure=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def save() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=dist.group.WORLD,
        min_replica_size=1,
        state_dict=save,
        load_state_dict=load,
        store_addr=host,
        store_port=store.port,
        rank=0,
        world_size=1,
        replica_id=name,
        timeout=timedelta(seconds=20),
    )
    parallel = torchft.DistributedDataParallel(manager, model)
    steps_of_all = torchft.Optimizer(manager, optimizer)
    truth = torch.linspace(-1, 1, 16)
    while (step := manager.current_step()) < steps:
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        steps_of_all.zero_grad()
        torch.manual_seed(hash((name, step)))
        inputs = torch.randn(64, 16)
        loss = torch.nn.functional.mse_loss(parallel(inputs).squeeze(1), inputs @ truth)
        loss.backward()
        steps_of_all.step()
        print(f"{name}: step {step}, {manager.num_participants()} replicas", flush=True)
    checksum = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"{name}: loss {loss.item():.6f}, sum of weights {checksum!r}", flush=True)
    manager.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kill-at", type=int, help="a step at which this replica dies")
    main(**vars(parser.parse_args()))
