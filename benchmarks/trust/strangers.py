"""Strangers connect to the ports of a job and send garbage, while it trains."""

import multiprocessing
import random
import socket
import statistics
import time
from contextlib import suppress

import psutil
import torch
import torch.distributed as dist

from benchmarks.ranks import Ranks, Worker
from benchmarks.row import Row
from benchmarks.trust.training import make_model, stepper

NUM_RANKS = 2
PER_SECOND = 1000
GARBAGE_BYTES = 256
SECONDS = 30.0
MOST_OF_TIME_WITHOUT = 1.1
CONNECT_TIMEOUT_S = 1.0
STEPS_AT_A_TIME = 20


def rows(quick: bool) -> list[Row]:
    """Of steps while nobody comes, while strangers knock elsewhere, and while they come."""
    seconds = 2.0 if quick else SECONDS
    with (
        Ranks(NUM_RANKS, ["dmlcomm"], {"DMLCOMM_TRANSPORT": "tcp"}) as ranks,
        socket.socket() as elsewhere,
    ):
        ports = [port for listening in ranks.call(listening_ports) for port in listening]
        elsewhere.bind(("127.0.0.1", 0))  # without listening: every connection is refused
        without_s = [_step_s(ranks, seconds / 2)]
        elsewhere_s = _step_beside(ranks, [elsewhere.getsockname()[1]], seconds)
        beside_s = _step_beside(ranks, ports, seconds)
        without_s.append(_step_s(ranks, seconds / 2))
    remark = "a step while the same strangers are refused elsewhere on this host takes "
    return [
        Row(
            "strangers",
            f"{PER_SECOND} connections/s for {seconds:g} s",
            beside_s,
            bound_s=statistics.mean(without_s),
            most_of_bound=MOST_OF_TIME_WITHOUT,
            remark=f"{remark}{elsewhere_s * 1000:.2f} ms",
        )
    ]


def _step_beside(ranks: Ranks, ports: list[int], seconds: float) -> float:
    """While strangers connect to these ports."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    stranger = context.Process(target=connect, args=(ports, seconds, theirs), daemon=True)
    stranger.start()
    ours.recv()  # it has begun
    step_s = _step_s(ranks, seconds)
    num_sent = ours.recv()
    stranger.join()
    if num_sent < 0.95 * seconds * PER_SECOND:
        raise RuntimeError(f"only {num_sent} connections in {seconds} s")
    return step_s


def _step_s(ranks: Ranks, seconds: float) -> float:
    """The median over ranks and steps."""
    return statistics.median(s for rank in ranks.call(steps_s, seconds) for s in rank)


def listening_ports(worker: Worker) -> list[int]:
    dist.all_reduce(torch.ones(1), group=worker.group("dmlcomm"))
    connections = psutil.Process().net_connections(kind="tcp")
    ports = [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
    assert ports, "the rank does not listen: nothing would be measured"
    return ports


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


def connect(ports: list[int], seconds: float, parent) -> None:
    """Main of the stranger: tells when it begins, and how many connections it has made."""
    noise = random.Random(7)
    begin, num_sent = time.perf_counter(), 0
    parent.send(None)
    while (now := time.perf_counter() - begin) < seconds:
        while num_sent < now * PER_SECOND:
            with suppress(OSError):
                address = ("127.0.0.1", ports[num_sent % len(ports)])
                with socket.create_connection(address, CONNECT_TIMEOUT_S) as stranger:
                    stranger.sendall(noise.randbytes(GARBAGE_BYTES))
            num_sent += 1
        time.sleep(0.001)
    parent.send(num_sent)
