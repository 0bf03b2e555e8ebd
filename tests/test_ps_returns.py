"""Servers that were found lost, and come back: they are filled from the other copies."""

import contextlib
import logging
import signal
import types
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from dmlcomm.ps import Client
from dmlcomm.ps.protocol import LAST_LIFE
from dmlcomm.ps.server import refill
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import (
    ServerProcess,
    WorkerProcess,
    addresses_of,
    server_processes,
    status_of,
)

COUNT = 300_007

# Adds 1 to every element of two models, until it is told to end; says how often it has.
WORKER = f"""
import sys
import threading
import numpy as np
from dmlcomm.ps import Client

ONES = np.ones({COUNT}, np.float32)
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
with Client(sys.argv[1], worker=int(sys.argv[2]), timeout_s={DEADLINE_S}) as client:
    client.init("w", 0 * ONES, rule="add", reduce="sum")
    client.init("late", 0 * ONES, rule="add", reduce="sum", apply="push")
    steps = before = 0
    while not told.is_set():
        weights = client.push_pull("w", ONES)
        assert (weights == weights[0]).all() and weights[0] > before, (before, set(weights))
        before = weights[0]
        client.push("late", ONES)
        steps += 1
        if steps == 5:
            print("trains", flush=True)
    lost = client.lost_servers
print(steps, lost, flush=True)
"""

# A silent connection is taken for lost after so long.
TIMEOUT = {"DMLCOMM_PEER_TIMEOUT_S": "1"}
JOB = ("--workers", "2", "--replicas", "1")


class Job:
    """Servers, and workers that train until `end`."""

    def __init__(self, servers: list[ServerProcess], stack: contextlib.ExitStack) -> None:
        self.servers = servers
        self.addresses = addresses_of(servers)
        self._stack = stack
        self._workers: list[WorkerProcess] = []

    def start_workers(self, *numbers: int) -> None:
        """Returns when they train."""
        new = [
            self._stack.enter_context(WorkerProcess(WORKER, self.addresses, str(number), **TIMEOUT))
            for number in numbers
        ]
        for worker in new:
            worker.expect("trains")
        self._workers += new

    def await_lost(self, lost: Sequence[int]) -> None:
        for index, server in enumerate(self.servers):
            if index not in lost and server.process.poll() is None:
                eventually(
                    lambda s=server: status_of(s.address).get("lost_servers") == list(lost),
                    f"server {index} finding {list(lost)} lost",
                )

    def await_return(self, server: int, workers: int) -> None:
        """Until the server has these many workers, and all its models have values."""

        def is_back() -> bool:
            status = status_of(self.servers[server].address)
            return (
                sum(worker["alive"] for worker in status["workers"]) == workers
                and sorted(model["name"] for model in status["models"]) == ["late", "w"]
                and all(model["sealed"] for model in status["models"])
            )

        eventually(is_back, f"server {server} is back")

    def logs(self) -> str:
        return "\n".join(server.kill() for server in self.servers)

    def end(self, lost: Sequence[int] = ()) -> None:
        """No update was lost or doubled, in either model."""
        for worker in self._workers:
            worker.say("end")
        total = 0
        for worker in self._workers:
            steps, servers = worker.next_line().split(" ", 1)
            assert servers == str(list(lost))
            total += int(steps)
        with Client(self.addresses, worker=9, timeout_s=DEADLINE_S) as reader:
            for model, options in (("w", {}), ("late", {"apply": "push"})):
                start = np.zeros(COUNT, np.float32)
                weights = reader.init(model, start, rule="add", reduce="sum", **options)
                assert set(weights.tolist()) == {float(total)}, model


@contextlib.contextmanager
def job(num_servers: int) -> Iterator[Job]:
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(server_processes(num_servers, *JOB, **TIMEOUT))
        running = Job(servers, stack)
        try:
            yield running
        except BaseException:
            print(running.logs())
            raise


def pause(running: Job, victim: int) -> None:
    """The server is stopped until the others have found it lost."""
    process = running.servers[victim].process
    process.send_signal(signal.SIGSTOP)
    running.await_lost([victim])
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(("num_servers", "victim"), [(2, 0), (3, 1)])
def test_server_that_was_lost_is_filled_and_a_second_failure_is_survived(num_servers, victim):
    with job(num_servers) as running:
        running.start_workers(0, 1)
        pause(running, victim)
        running.start_workers(2)  # it comes meanwhile
        running.await_return(victim, workers=3)
        running.await_lost([])
        running.start_workers(3)  # it comes late
        replica = (victim + 1) % num_servers
        running.servers[replica].kill()
        running.await_lost([replica])
        running.start_workers(4)
        running.end(lost=[replica])


def test_killed_server_that_is_started_again_is_filled_and_may_be_lost_once_more():
    with job(2) as running, contextlib.ExitStack() as stack:
        running.start_workers(0, 1)
        for victim in (1, 0, 1):
            address = running.servers[victim].address
            running.servers[victim].kill()
            running.await_lost([victim])
            again = ServerProcess(
                *("--servers", running.addresses, "--listen", address, *JOB), **TIMEOUT
            )
            running.servers[victim] = stack.enter_context(again)
            running.await_return(victim, workers=2)
        running.end()


def test_server_that_has_come_back_as_often_as_it_can_stays_lost_and_says_so_once(
    monkeypatch, caplog
):
    monkeypatch.setattr(refill, "RETURN_INTERVAL_S", 0.001)
    core = types.SimpleNamespace(lives=lambda: [0, LAST_LIFE])
    peers = types.SimpleNamespace(addresses=["a:1", "b:1"])
    with caplog.at_level(logging.ERROR, logger="dmlcomm"):
        # What it would forget or ask is not there: a thread that goes on would fail.
        watcher = refill.Refill(core, 1, 2, peers, None, None, None)
        watcher._thread.join(DEADLINE_S)
        assert not watcher._thread.is_alive()
    (record,) = caplog.records
    assert "server 1 was lost for the 128th time and stays lost" in record.getMessage()
    assert "start all servers and the job anew" in record.getMessage()
