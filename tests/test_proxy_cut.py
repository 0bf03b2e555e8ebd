"""A network that separates two proxies, which both reach the servers."""

import contextlib
import json
import sys
import time

from dmlcomm.lab import Lab
from dmlcomm.ps import tree
from dmlcomm.topology import graph as topology
from helpers import DEADLINE_S
from helpers.lab_hosts import data_address, management_address, on_host, separate
from helpers.parameter_servers import ServerProcess, WorkerProcess, addresses_of, clean_environment
from helpers.proxies import ProxyProcess

COUNT = 100_003
HOSTS = 3

WORKER = f"""
import sys
import numpy as np
from dmlcomm.ps import Client

number = int(sys.argv[2])
ONES = np.ones({COUNT}, np.int64)

with Client(sys.argv[1], worker=number, proxy=sys.argv[3], timeout_s={DEADLINE_S}) as client:
    client.init("w", 0 * ONES, rule="add", reduce="sum")
    clock = 0
    while True:
        clock += 1
        weights = client.push_pull("w", ONES * (number + 1))
        expected = clock * {HOSTS * (HOSTS + 1) // 2}
        print("right" if (weights == expected).all() else f"wrong at clock {{clock}}", flush=True)
"""


def test_a_tree_avoids_edges_that_are_cut():
    chain = tree.parents("chain", [""] * 4)
    assert tree.avoiding(chain, lambda *_: False) == chain
    assert tree.avoiding(chain, lambda *_: True) == [tree.ROOT] * 4
    assert tree.avoiding(chain, lambda *edge: edge == (2, 1)) == [tree.ROOT, 0, 0, 2]


def test_two_proxies_that_do_not_reach_each_other_are_put_apart(lab_is_possible, tmp_path):
    with Lab(f"flat:{HOSTS + 1},1", rate="500mbit") as lab, contextlib.ExitStack() as stack:
        server_host, *hosts = topology.hosts(lab.graph())
        listen = ("--listen", f"{management_address(lab, server_host)}:0", "--insecure")
        server = stack.enter_context(
            ServerProcess(*listen, "--workers", str(HOSTS), **on_host(lab, server_host))
        )
        paths = [f"{tmp_path}/{host}.sock" for host in hosts]
        for host, path in zip(hosts, paths, strict=True):
            options = on_host(lab, host)
            stack.enter_context(ProxyProcess(path, "chain", "--insecure", **options))
        arguments = [(addresses_of([server]), str(i), path) for i, path in enumerate(paths)]
        workers = [
            stack.enter_context(WorkerProcess(WORKER, *words, **on_host(lab, host)))
            for host, words in zip(hosts, arguments, strict=True)
        ]
        expect_steps(workers)
        parent, child = hosts[:2]
        far = [data_address(lab, parent), management_address(lab, parent)]
        separate(lab, child, far)  # the other direction stays
        wait_for_parent(lab, child, paths[1], server.address)
        expect_steps(workers)


def wait_for_parent(lab, host, path, address):
    """Until the proxy of the host has the server for its parent."""
    command = [sys.executable, "-m", "dmlcomm", "proxy", "status", "--socket", path, "--json"]
    deadline = time.monotonic() + DEADLINE_S
    parent = None
    while parent != address:
        assert time.monotonic() < deadline, parent
        options = {"capture_output": True, "text": True, "env": clean_environment()}
        jobs = json.loads(lab.exec(host, command, **options).stdout)["jobs"]
        parent = jobs[0]["nodes"][0]["parent"] if jobs else None


def expect_steps(workers, steps=3):
    """Of all workers, with the right sums. What was printed before is passed over."""
    for worker in workers:
        while not worker._lines.empty():
            assert worker.next_line() == "right"
    for worker in workers:
        for _ in range(steps):
            assert worker.next_line() == "right"
