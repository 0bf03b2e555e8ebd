"""Strangers connect to the ports of a job and send garbage, while it trains."""

import multiprocessing
import random
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import torch
import torch.distributed as dist

from benchmarks.ranks import Ranks, Worker
from benchmarks.row import Row
from benchmarks.trust.training import make_model, stepper

NUM_RANKS = 2
PER_SECOND = 1000
LEAST_SHARE = 0.9  # of these connections, as the cores are busy
GARBAGE_BYTES = 256
SECONDS = 30.0
TURNS = 6
MOST_OF_TIME_WITHOUT = 1.1
CONNECT_TIMEOUT = struct.pack("ll", 1, 0)  # a second, as the kernel has it
PAUSE_S = 0.01  # so the stranger itself takes little of the cores
STEPS_AT_A_TIME = 20


def rows(quick: bool) -> list[Row]:
    """Steps in turns: while nobody comes, while strangers knock elsewhere, and while they come."""
    turns, seconds = (1, 2.0) if quick else (TURNS, SECONDS / TURNS)
    without: list[float] = []
    refused: list[float] = []
    beside: list[float] = []
    shares: list[float] = []
    with (
        Ranks(NUM_RANKS, [], {"DMLCOMM_TRANSPORT": "tcp"}) as ranks,
        socket.socket() as elsewhere,
    ):
        ports = [port for listening in ranks.call(listening_ports) for port in listening]
        elsewhere.bind(("127.0.0.1", 0))  # without listening: every connection is refused
        for _ in range(turns):
            without += _steps(ranks, seconds)
            with _strangers([elsewhere.getsockname()[1]]):
                refused += _steps(ranks, seconds)
            with _strangers(ports) as share:
                beside += _steps(ranks, seconds)
            shares += share
    return [
        Row(
            "strangers",
            f"{PER_SECOND} connections/s for {turns * seconds:g} s",
            statistics.mean(beside),
            bound_s=statistics.mean(without),
            most_of_bound=MOST_OF_TIME_WITHOUT,
            remark=f"strangers take {statistics.mean(shares):.0%} of a core; a step while they "
            f"are refused elsewhere on this host takes {statistics.mean(refused) * 1000:.2f} ms",
        )
    ]


def _steps(ranks: Ranks, seconds: float) -> list[float]:
    """Seconds of each step, of all ranks."""
    return [s for rank in ranks.call(steps_s, seconds) for s in rank]


@contextmanager
def _strangers(ports: list[int]) -> Iterator[list[float]]:
    """They connect to these ports meanwhile; at the end the list has what of a core they took."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    stranger = context.Process(target=connect, args=(ports, theirs), daemon=True)
    stranger.start()
    ours.recv()  # it has begun
    share: list[float] = []
    yield share
    ours.send(None)
    num_sent, seconds, core_s = ours.recv()
    share.append(core_s / seconds)
    stranger.join()
    if num_sent < LEAST_SHARE * seconds * PER_SECOND:
        raise RuntimeError(f"only {num_sent} connections in {seconds:.1f} s")


def listening_ports(worker: Worker) -> list[int]:
    """Makes the group; the ports on which it listens, without those of gloo in this rank."""
    before = _listening()
    worker.add_group("dmlcomm")
    dist.all_reduce(torch.ones(1), group=worker.group("dmlcomm"))
    ports = _listening() - before
    assert ports, "the rank does not listen: nothing would be measured"
    return sorted(ports)


def _listening() -> set[int]:
    connections = psutil.Process().net_connections(kind="tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


def steps_s(worker: Worker, seconds: float) -> list[float]:
    """Of each step, for so long. All ranks make as many, since they agree when to end."""
    step = stepper(make_model(worker.rank), worker.group("dmlcomm"))
    step()
    found, is_over = [], torch.zeros(1)
    end = time.perf_counter() + seconds
    while not is_over:
        for _ in range(STEPS_AT_A_TIME):
            begin = time.perf_counter()
            step()
            found.append(time.perf_counter() - begin)
        is_over.fill_(time.perf_counter() > end)
        dist.all_reduce(is_over)  # of gloo
    return found


def connect(ports: list[int], parent) -> None:
    """Main of the stranger: tells when it begins and, when it is told to end, what it has done."""
    garbage = random.Random(7).randbytes(GARBAGE_BYTES)
    begin, num_sent = time.perf_counter(), 0
    parent.send(None)
    while not parent.poll():
        while num_sent < (time.perf_counter() - begin) * PER_SECOND:
            with suppress(OSError), socket.socket() as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, CONNECT_TIMEOUT)
                stranger.connect(("127.0.0.1", ports[num_sent % len(ports)]))
                stranger.send(garbage)
            num_sent += 1
        time.sleep(PAUSE_S)
    parent.send((num_sent, time.perf_counter() - begin, time.process_time()))
