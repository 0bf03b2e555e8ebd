"""Both copies of a part have the same pushes of a worker that has died."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dmlcomm.ps import Client
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import (
    ServerProcess,
    WorkerProcess,
    addresses_of,
    server_processes,
    status_of,
)

ROWS, COLUMNS = 3001, 701  # the rows of a shard take two commands
SUM = {"rule": "add", "reduce": "sum"}

# Pushes ones when it is told to, and ends its clock. It has no answer as long as a server is
# stopped.
VICTIM = f"""
import json
import sys
import threading
import numpy as np
from dmlcomm.ps import Client

servers, options = sys.argv[1], json.loads(sys.argv[2])
ones = np.ones(({ROWS}, {COLUMNS}), np.float32)
with Client(servers, worker=1) as client:
    client.init("w", 0 * ones, **options)
    print("ready", flush=True)
    sys.stdin.readline()
    if options.get("tables"):
        push = lambda: client.push_rows("w", range({ROWS}), ones)
    else:
        push = lambda: client.push("w", ones)
    threading.Thread(target=push, daemon=True).start()
    sys.stdin.readline()
    client.clock()
    sys.stdin.readline()
"""


@contextlib.contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def worker_of(server: ServerProcess, worker: int) -> dict[str, Any]:
    workers: list[dict[str, Any]] = status_of(server.address)["workers"]
    return next(w for w in workers if w["worker"] == worker)


def bytes_of_push(options: dict[str, Any]) -> int:
    element_bytes = 2 if options.get("wire") == "bf16" else 4
    number_bytes = 8 if options.get("tables") else 0
    return ROWS * (COLUMNS * element_bytes + number_bytes)


def weights_of(client: Client, options: dict[str, Any]) -> np.ndarray:
    return client.pull_rows("w", range(ROWS)) if options.get("tables") else client.pull("w")


@contextlib.contextmanager
def two_workers(options: dict[str, Any]) -> Iterator[Any]:
    """Two servers with copies, a worker that may be killed, and another one."""
    zeros = np.zeros((ROWS, COLUMNS), np.float32)
    with (
        server_processes(2, "--workers", "2", "--replicas", "1") as servers,
        WorkerProcess(VICTIM, addresses_of(servers), json.dumps(options)) as victim,
        Client(addresses_of(servers), worker=0, timeout_s=DEADLINE_S) as survivor,
    ):
        survivor.init("w", zeros, **options)
        victim.expect("ready")
        yield servers, victim, survivor


def push_to_one(server: ServerProcess, victim: WorkerProcess, options: dict[str, Any]) -> None:
    num_bytes = worker_of(server, 1)["bytes_in"] + bytes_of_push(options)
    victim.say("push")
    eventually(lambda: worker_of(server, 1)["bytes_in"] >= num_bytes, "a push on one server")


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        SUM,
        SUM | {"wire": "bf16"},
        SUM | {"apply": "push"},
        SUM | {"tables": True},
        SUM | {"tables": True, "apply": "push"},
    ],
)
def test_push_that_one_server_has_of_a_killed_worker_is_on_both_copies(options, frozen, killed):
    with two_workers(options) as (servers, victim, survivor):
        with stopped(servers[frozen]):
            push_to_one(servers[1 - frozen], victim, options)
            victim.kill()
        survivor.clock()
        assert set(weights_of(survivor, options).ravel().tolist()) == {1.0}
        servers[killed].kill()
        assert set(weights_of(survivor, options).ravel().tolist()) == {1.0}


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize(
    ("options", "expected"),
    [({"rule": "add", "tables": True}, 0.5), ({"rule": "adam", "lr": 0.5}, -0.5)],
)
def test_clock_that_a_killed_worker_has_ended_on_one_server_is_over_on_both(
    options, expected, frozen, killed
):
    """The mean of rows is over the workers that have ended the clock."""
    with two_workers(options) as (servers, victim, survivor):
        with stopped(servers[frozen]):
            push_to_one(servers[1 - frozen], victim, options)
            victim.say("clock")
            eventually(lambda: worker_of(servers[1 - frozen], 1)["clock"] == 1, "the next clock")
            victim.kill()
        survivor.clock()
        weights = weights_of(survivor, options)
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        servers[killed].kill()
        np.testing.assert_array_equal(weights_of(survivor, options), weights)


@pytest.mark.alone
def test_a_server_that_is_stopped_waits_for_no_other():
    """It would write its last checkpoint too late."""
    with two_workers(SUM) as (servers, victim, _), stopped(servers[1]):
        victim.kill()
        eventually(lambda: not worker_of(servers[0], 1)["alive"], "a server without the worker")
        begin = time.monotonic()
        code, log = servers[0].terminate()
        assert time.monotonic() - begin < 5, log
        assert code == 0, log
