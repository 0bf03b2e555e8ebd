"""One rank of the demo's second part: a few steps of LeNet-5 between hosts of a lab.

demo_lab_rank.py BACKEND STEPS      rank 0 prints a JSON line before the first step and at the end
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from demo_lenet import Trainer, mean_over_ranks

WARMUP = 1  # DDP arranges its buckets in the first step


def main(backend: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    trainer = Trainer(epochs=1)
    seconds, loss = [], 0.0
    for step, batch in zip(range(WARMUP + steps), trainer.batches(epoch=0), strict=False):
        dist.barrier()
        if step == WARMUP:
            say(begins=step)
        begin = time.perf_counter()
        loss = trainer.step(*batch)
        seconds.append(time.perf_counter() - begin)
    slowest = torch.tensor(seconds[WARMUP:])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    say(step_s=statistics.median(slowest.tolist()), loss=mean_over_ranks(loss))
    dist.destroy_process_group()


def say(**event: float) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    # gloo's threads may outlive the interpreter's modules, and abort a script that is done.
    sys.stdout.flush()
    os._exit(0)
