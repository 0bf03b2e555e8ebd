"""One rank of a job in the lab: rank.py JOB SERVERS PROXIES BARRIER PLACE

JOB is JSON: operation, bytes, steps, seconds of computing, and when servers answer. SERVERS are
addresses, or "-" for a collective; PROXIES is the folder of their sockets, called as hosts are, or
"none". BARRIER is the file at which the ranks of all jobs meet, PLACE that of this job's rank 0
there. Prints when the rank begins and ends, by a clock that all processes of the machine share, and
how many elements are wrong.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.barrier import open_barrier
from dmlcomm.simulate.push_pull import PIECES

TIMEOUT_S = 300

# A step, and how many elements are wrong after so many steps.
Work = tuple[Callable[[], None], Callable[[int], int]]


def collective(job: dict) -> Work:
    import torch
    import torch.distributed as dist

    from benchmarks.operations import OPERATIONS, Case

    torch.set_num_threads(1)
    dist.init_process_group("dmlcomm")
    rank = dist.get_rank()
    case = Case(job["op"], job["num_bytes"], torch.float32, dist.get_world_size())
    operation = OPERATIONS[job["op"]]
    buffers = operation.buffers(case, rank)

    def step() -> None:
        operation.run(buffers, case, dist.group.WORLD)

    def count_wrong(_: int) -> int:
        operation.fill(buffers, case, rank, seed=1)
        step()
        return operation.count_wrong(buffers, case, rank, seed=1)

    count_wrong(0)  # connections are made
    # Sums of sums would grow beyond what a float holds, in operations that work in place.
    for buffer in (buffers.input, buffers.output):
        if buffer is not None:
            buffer.zero_()
    return step, count_wrong


def push_pull(job: dict, servers: str, proxies: str) -> Work:
    from dmlcomm.ps import Client

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    proxy = "none" if proxies == "none" else f"{proxies}/{socket.gethostname()}"
    client = Client(servers, worker=rank, timeout_s=TIMEOUT_S, proxy=proxy)
    weights = np.zeros(job["num_bytes"] // 4, np.float32)
    gradient = np.full(weights.size, np.float32(rank + 1))
    client.init("net", weights, rule="add", reduce="sum")

    def step() -> None:
        if job["answer"] == PIECES:
            client.push_pull("net", gradient, out=weights)
            return
        client.push("net", gradient)
        client.clock()
        client.pull("net", out=weights)

    def count_wrong(steps: int) -> int:
        expected = (steps + 1) * ranks * (ranks + 1) // 2
        client.close()
        return int((weights != expected).sum())

    step()  # connections are made
    return step, count_wrong


def main() -> None:
    job, (servers, proxies, barrier_path, place) = json.loads(sys.argv[1]), sys.argv[2:]
    step, count_wrong = collective(job) if servers == "-" else push_pull(job, servers, proxies)
    barrier = open_barrier(barrier_path, int(place) + int(os.environ["RANK"]))
    barrier.wait()
    begin = time.monotonic()
    print(json.dumps({"begin": begin}), flush=True)
    for _ in range(job["steps"]):
        time.sleep(job["compute_s"])
        step()
    end = time.monotonic()
    barrier.leave()
    print(json.dumps({"end": end, "wrong": count_wrong(job["steps"])}), flush=True)
    barrier.leave()  # nobody is left alone in an operation


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
