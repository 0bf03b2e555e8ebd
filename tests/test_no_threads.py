"""Processes that may have no further thread: operations end, or say why they fail."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dmlcomm.ps import Client
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import ServerProcess, clean_environment

SOURCE = Path(__file__).parent / "helpers" / "no_threads.c"

REFUSAL = "worker 0 did not connect: internal_error: .*a further thread of this process"

# Two ranks of one process group, of which none may have a thread for what follows its operations.
RANK = """
import datetime, os, pathlib, sys
import torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
dist.init_process_group(
    "dmlcomm", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2,
    timeout=datetime.timedelta(seconds=20),
)
dist.barrier()
pathlib.Path(os.environ["NO_THREADS_FILE"]).write_text("0")
futures = [
    dist.all_reduce(torch.full((1000,), float(i)), async_op=True).get_future() for i in range(20)
]
print([future.wait()[0][0].item() for future in futures])
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("no_threads") / "no_threads.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return path


def test_futures_are_completed_by_the_threads_that_there_are(library, tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)],
            env=clean_environment(
                LD_PRELOAD=str(library), NO_THREADS_FILE=str(tmp_path / f"left-{rank}")
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, log = rank.communicate(timeout=DEADLINE_S)
        assert out == f"{[2.0 * i for i in range(20)]}\n", log


@pytest.mark.parametrize("left", [0, 1, 2])
def test_server_without_a_thread_for_a_worker_says_so_and_lets_it_try_again(
    library, tmp_path, left
):
    """A connection's progress, and a session's two threads."""
    file = tmp_path / "left"
    environment = {"LD_PRELOAD": str(library), "NO_THREADS_FILE": str(file)}

    def work():
        with Client(server.address, worker=0, timeout_s=DEADLINE_S) as client:
            return client.init("w", np.ones(3)).tolist()

    with ServerProcess("--workers", "1", **environment) as server, ThreadPoolExecutor() as pool:
        file.write_text(str(left))
        worker = pool.submit(work)
        eventually(lambda: file.read_text().startswith("-"), "a thread that is refused")
        file.unlink()
        assert worker.result(DEADLINE_S) == [1, 1, 1]
        assert re.search(REFUSAL, server.kill())
