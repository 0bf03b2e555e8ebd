"""Both copies of a part have the same pushes of a worker that has died."""

import contextlib
import signal
import time
from collections.abc import Iterator

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

ROWS, COLUMNS = 3001, 101
NUM_BYTES = {"": 4 * ROWS * COLUMNS, "bf16": 2 * ROWS * COLUMNS}
OPTIONS = {"rule": "add", "reduce": "sum"}

# Pushes ones when it is told to, and has no answer as long as a server is stopped.
VICTIM = f"""
import sys
import numpy as np
from dmlcomm.ps import Client

servers, apply, tables, wire = sys.argv[1], sys.argv[2], sys.argv[3] == "True", sys.argv[4]
ones = np.ones(({ROWS}, {COLUMNS}), np.float32)
with Client(servers, worker=1) as client:
    client.init("w", 0 * ones, apply=apply, tables=tables, wire=wire, **{OPTIONS})
    print("ready", flush=True)
    sys.stdin.readline()
    if tables:
        client.push_rows("w", range({ROWS}), ones)
    else:
        client.push("w", ones)
"""


@contextlib.contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def bytes_in(server: ServerProcess, worker: int) -> int:
    workers = status_of(server.address)["workers"]
    return next(w["bytes_in"] for w in workers if w["worker"] == worker)


def is_alive(server: ServerProcess, worker: int) -> bool:
    workers = status_of(server.address)["workers"]
    return any(w["worker"] == worker and w["alive"] for w in workers)


def weights_of(client: Client, tables: bool) -> np.ndarray:
    return client.pull_rows("w", range(ROWS)) if tables else client.pull("w")


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize(
    ("apply", "tables", "wire"),
    [
        ("clock", False, ""),
        ("clock", False, "bf16"),
        ("push", False, ""),
        ("clock", True, ""),
        ("push", True, ""),
    ],
)
def test_push_that_one_server_has_of_a_killed_worker_is_on_both_copies(
    apply, tables, wire, frozen, killed
):
    zeros = np.zeros((ROWS, COLUMNS), np.float32)
    with (
        server_processes(2, "--workers", "2", "--replicas", "1") as servers,
        WorkerProcess(VICTIM, addresses_of(servers), apply, str(tables), wire) as victim,
        Client(addresses_of(servers), worker=0, timeout_s=DEADLINE_S) as survivor,
    ):
        survivor.init("w", zeros, apply=apply, tables=tables, wire=wire, **OPTIONS)
        victim.expect("ready")
        with stopped(servers[frozen]):
            other = servers[1 - frozen]
            before, num_bytes = bytes_in(other, 1), NUM_BYTES[wire]
            victim.say("push")
            eventually(lambda: bytes_in(other, 1) >= before + num_bytes, "a push on one server")
            victim.kill()
        survivor.clock()
        assert set(weights_of(survivor, tables).ravel().tolist()) == {1.0}
        servers[killed].kill()
        assert set(weights_of(survivor, tables).ravel().tolist()) == {1.0}


def test_a_server_that_is_stopped_waits_for_no_other():
    """It would write its last checkpoint too late."""
    with (
        server_processes(2, "--workers", "2", "--replicas", "1") as servers,
        WorkerProcess(VICTIM, addresses_of(servers), "clock", "False", "") as victim,
        Client(addresses_of(servers), worker=0, timeout_s=DEADLINE_S) as survivor,
    ):
        survivor.init("w", np.zeros((ROWS, COLUMNS), np.float32), **OPTIONS)
        victim.expect("ready")
        with stopped(servers[1]):
            victim.kill()
            eventually(lambda: not is_alive(servers[0], 1), "a server without the worker")
            begin = time.monotonic()
            code, log = servers[0].terminate()
            assert time.monotonic() - begin < 5, log
            assert code == 0, log
