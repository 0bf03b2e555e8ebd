"""One rank of `congestion`: an operation as it is, and then with its connections paced.

congestion_rank.py OPERATION SIZE ITERATIONS BARRIER      bytes of float32; see `benchmarks.barrier`

Rank 0 prints a line of JSON for each of the two.
"""

import contextlib
import json
import os
import socket
import statistics
import struct
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import dmlcomm
from benchmarks import operations
from benchmarks.barrier import Barrier, open_barrier
from benchmarks.lab_worker import end, over_ranks
from benchmarks.multi_nic.settings import WARM_UP
from benchmarks.operations import OPERATIONS
from dmlcomm.network.nic import own_rails

TIMEOUT = timedelta(minutes=5)
SO_MAX_PACING_RATE = 47  # of Linux; bytes per second


def main() -> None:
    name, size, iterations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    group = dist.new_group(backend="dmlcomm", timeout=TIMEOUT)
    case = operations.Case(name, size, torch.float32, dist.get_world_size())
    barrier = open_barrier(sys.argv[4], dist.get_rank())
    measure(case, WARM_UP, group, barrier)
    for paced in (False, True):
        if paced:
            pace(group)
        result = measure(case, iterations, group, barrier)
        if dist.get_rank() == 0:
            print(json.dumps({"paced": paced} | result), flush=True)
    dist.destroy_process_group()


def measure(
    case: operations.Case, iterations: int, group: dist.ProcessGroup, barrier: Barrier
) -> dict:
    """The median of the slowest ranks' seconds, and of all ranks wrong elements and the share of
    the bytes that was sent again."""
    operation, rank = OPERATIONS[case.operation], dist.get_rank()
    buffers = operation.buffers(case, rank)
    seconds = []
    sent, resent = traffic(group)
    for _ in range(iterations):
        operation.fill(buffers, case, rank, seed=1)
        barrier.wait()
        begin = time.perf_counter()
        operation.run(buffers, case, group)
        seconds.append(time.perf_counter() - begin)
        barrier.leave()
    wrong = operation.count_wrong(buffers, case, rank, seed=1)
    slowest, wrong = over_ranks(seconds, wrong)
    sent_after, resent_after = traffic(group)
    return {
        "seconds": statistics.median(slowest.tolist()),
        "resent": (resent_after - resent) / (sent_after - sent),
        "wrong": wrong,
        "congestion": ", ".join({r.congestion for r in dmlcomm.rails(group) if r.congestion}),
    }


def traffic(group: dist.ProcessGroup) -> tuple[int, int]:
    """Bytes that all ranks have sent, and sent again."""
    rails = dmlcomm.rails(group)
    bytes_of = torch.tensor(
        [sum(rail.bytes_sent for rail in rails), sum(rail.bytes_resent for rail in rails)]
    )
    dist.all_reduce(bytes_of)
    sent, resent = bytes_of.tolist()
    return sent, resent


def pace(group: dist.ProcessGroup) -> None:
    """From now on the kernel paces every connection at the rate that its rail was measured at."""
    rates = {rail.interface: rail.bits_per_second for rail in dmlcomm.rails(group)}
    rate_at = {rail.address: rates.get(rail.interface, 0) for rail in own_rails()}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it is no socket
            pace_connection(socket.socket(fileno=int(descriptor)), rate_at)


def pace_connection(connection: socket.socket, rate_at: dict[str, float]) -> None:
    """At the rate of the rail that it is on, if it is on one. Closes nothing."""
    try:
        if connection.family == socket.AF_INET and connection.type == socket.SOCK_STREAM:
            rate = rate_at.get(connection.getsockname()[0], 0)
            if rate > 0:
                limit = struct.pack("Q", int(rate / 8))
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, limit)
    finally:
        connection.detach()


if __name__ == "__main__":
    main()
    end()
