"""One rank of a training job of the testbed: testbed_rank.py KIND SERVER BYTES COMPUTE_S STEPS

KIND is "ring", "ps" with the address of the parameter server, or "tcp" with that of a host where
`plain_tcp` runs. A step computes, which is a wait, and exchanges a gradient of so many bytes.
Prints the seconds of each step as JSON, and at the end how many elements are wrong.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.reproduce_sip import plain_tcp

TIMEOUT_S = 300

# A step, and how many elements are wrong after so many.
Work = tuple[Callable[[int], None], Callable[[int], int]]


def ring(num_elements: int) -> Work:
    import torch
    import torch.distributed as dist

    dist.init_process_group("dmlcomm")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gradient, wrong = torch.empty(num_elements), torch.zeros(())

    def step(number: int) -> None:
        gradient.fill_(rank + number)
        dist.all_reduce(gradient)
        expected = ranks * number + ranks * (ranks - 1) // 2
        wrong.add_((gradient != expected).sum())

    return step, lambda _: int(wrong)


def parameter_server(server: str, num_elements: int) -> Work:
    """Asynchronous: a pull waits for no other worker."""
    from dmlcomm.ps import Client

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    client = Client(server, worker=rank, timeout_s=TIMEOUT_S)
    weights = np.zeros(num_elements, np.float32)
    gradient = np.full(num_elements, np.float32(rank + 1))
    client.init("net", weights, rule="add", reduce="sum")
    client.barrier()

    def step(_: int) -> None:
        client.push("net", gradient)
        client.clock()
        client.pull("net", staleness=None, out=weights)

    def count_wrong(steps: int) -> int:
        client.barrier()
        client.pull("net", staleness=0, out=weights)
        client.close()
        return int((weights != steps * ranks * (ranks + 1) // 2).sum())

    return step, count_wrong


def plain(server: str, num_bytes: int) -> Work:
    """The same bytes over one connection, without anything on top."""
    connection = socket.create_connection((server, plain_tcp.PORT), TIMEOUT_S)
    memory = memoryview(bytearray(num_bytes))
    return lambda _: plain_tcp.exchange(connection, memory), lambda _: 0


def main() -> None:
    kind, server, num_bytes, compute_s, steps = sys.argv[1:]
    num_elements = int(num_bytes) // 4
    if kind == "tcp":
        step, count_wrong = plain(server, int(num_bytes))
    elif kind == "ps":
        step, count_wrong = parameter_server(server, num_elements)
    else:
        step, count_wrong = ring(num_elements)
    for number in range(int(steps)):
        begin = time.monotonic()
        time.sleep(float(compute_s))
        step(number)
        seconds = time.monotonic() - begin
        print(json.dumps({"step": number, "seconds": seconds}), flush=True)
    print(json.dumps({"wrong": count_wrong(int(steps))}), flush=True)


if __name__ == "__main__":
    main()
