"""A rank of a job in the lab: computes, as far as a core is concerned asleep, and communicates.

Rank 0 prints a line when the group is there, and one of JSON at the end: the seconds of each step.
"""

import argparse
import json
import os
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--proxies", nargs="+", help="socket of each rank's proxy; default: none")
    parser.add_argument("--operation", choices=["all_reduce", "broadcast"], default="all_reduce")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of each step")
    parser.add_argument("--warm-up", type=int, default=0, help="steps that do not count")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    os.environ["DMLCOMM_PROXY"] = options.proxies[rank] if options.proxies else "none"

    import torch
    import torch.distributed as dist

    dist.init_process_group("dmlcomm")
    tensor = torch.zeros(options.bytes // 4, dtype=torch.int32)
    wrong = 0

    def step() -> float:
        nonlocal wrong
        begin = time.monotonic()
        time.sleep(options.compute)
        tensor.fill_(rank + 1)
        num_ranks = dist.get_world_size()
        if options.operation == "all_reduce":
            dist.all_reduce(tensor)
            expected = num_ranks * (num_ranks + 1) // 2
        else:  # from the last rank
            dist.broadcast(tensor, num_ranks - 1)
            expected = num_ranks
        seconds = time.monotonic() - begin
        wrong += int((tensor != expected).sum())
        return seconds

    def say(text: str) -> None:
        if rank == 0:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    for _ in range(options.warm_up):
        step()
    say("begins")
    seconds = [step() for _ in range(options.steps)]
    say(json.dumps({"seconds": seconds, "wrong": wrong}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
