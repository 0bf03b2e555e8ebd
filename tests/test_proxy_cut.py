"""Networks that separate two proxies, which both reach the servers, a host from all others, or a
host from one of two networks."""

import contextlib
import json
import sys
import time
from types import SimpleNamespace

from dmlcomm.lab import Lab
from dmlcomm.ps import tree
from dmlcomm.topology import graph as topology
from helpers import DEADLINE_S
from helpers.lab_hosts import crossed, darken, data_address, management_address, on_host, separate
from helpers.parameter_servers import ServerProcess, WorkerProcess, clean_environment
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
        print(clock, weights.min(), weights.max(), flush=True)
"""
ALL = HOSTS * (HOSTS + 1) // 2  # what a clock adds


@contextlib.contextmanager
def training(lab, folder, *server_options, **server_environment):
    """A server, and on each of the other hosts a proxy of a chain with a worker."""
    with contextlib.ExitStack() as stack:
        server_host, *hosts = topology.hosts(lab.graph())
        listen = ("--listen", f"{management_address(lab, server_host)}:0", "--insecure")
        count = ("--workers", str(HOSTS))
        server = stack.enter_context(
            ServerProcess(
                *listen,
                *count,
                *server_options,
                **on_host(lab, server_host, **server_environment),
            )
        )
        paths = [f"{folder}/{host}.sock" for host in hosts]
        for host, path in zip(hosts, paths, strict=True):
            options = on_host(lab, host)
            stack.enter_context(ProxyProcess(path, "chain", "--insecure", **options))
        workers = [
            stack.enter_context(
                WorkerProcess(WORKER, server.address, str(i), paths[i], **on_host(lab, host))
            )
            for i, host in enumerate(hosts)
        ]
        expect_steps(workers, has_all)
        yield SimpleNamespace(server=server, hosts=hosts, paths=paths, workers=workers)


def test_a_tree_avoids_edges_that_are_cut():
    chain = tree.parents("chain", [""] * 4)
    assert tree.avoiding(chain, lambda *_: False) == chain
    assert tree.avoiding(chain, lambda *_: True) == [tree.ROOT] * 4
    assert tree.avoiding(chain, lambda *edge: edge == (2, 1)) == [tree.ROOT, 0, 0, 2]


def test_two_proxies_that_do_not_reach_each_other_are_put_apart(lab_is_possible, tmp_path):
    with (
        Lab(f"flat:{HOSTS + 1},1", rate="500mbit") as lab,
        training(lab, tmp_path) as job,
    ):
        parent, child = job.hosts[:2]
        far = [data_address(lab, parent), management_address(lab, parent)]
        separate(lab, child, far)  # the other direction stays
        wait_for_parent(lab, child, job.paths[1], job.server.address)
        expect_steps(job.workers, has_all)


def test_proxies_use_all_nics_and_go_on_in_their_tree_without_one(lab_is_possible, tmp_path):
    steps = 10
    least_bytes = steps * COUNT * 8 // 2  # of pushes and of weights each, over both NICs
    with (
        Lab(f"flat:{HOSTS + 1},2", rate="500mbit") as lab,
        training(lab, tmp_path) as job,
    ):
        inner = 1  # it has a parent and a child: all of a step passes it, both ways
        cables = [f"{job.hosts[inner]}:eth{nic}" for nic in range(2)]
        before = [crossed(lab, cable) for cable in cables]
        expect_steps(job.workers, has_all, steps)
        after = [crossed(lab, cable) for cable in cables]
        for begin, end in zip(before, after, strict=True):
            assert end - begin > least_bytes
        node = node_at(lab, job.hosts[inner], job.paths[inner])
        lab.set(cables[0], "down")
        expect_steps(job.workers, has_all, steps)
        # Each tree has other nodes.
        assert node_at(lab, job.hosts[inner], job.paths[inner])["address"] == node["address"]


def test_a_host_that_goes_dark_with_its_workers_is_done_without(lab_is_possible, tmp_path):
    dark = 0  # that of the proxy which has the others below it
    # The others do not wait until the worker may have come another way.
    patient = ("--return-timeout", str(10 * DEADLINE_S))
    with (
        Lab(f"flat:{HOSTS + 1},1", rate="500mbit") as lab,
        training(lab, tmp_path, *patient, DMLCOMM_PEER_TIMEOUT_S="4") as job,
    ):
        darken(lab, job.hosts[dark])
        without = ALL - (dark + 1)
        last = set()  # clocks of the lost worker that count: the last one maybe not in all pieces

        def is_right(clock, least, most):
            (low, rest), (high, other) = (
                divmod(v - clock * without, dark + 1) for v in (least, most)
            )
            if low < clock:
                last.add((low, high))
            return rest == other == 0 and low <= high <= min(low + 1, clock)

        expect_steps([w for i, w in enumerate(job.workers) if i != dark], is_right)
        assert len(last) == 1


def node_at(lab, host, path):
    """Of the proxy of the host, as `proxy status` has it; None while it is in no tree."""
    command = [sys.executable, "-m", "dmlcomm", "proxy", "status", "--socket", path, "--json"]
    options = {"capture_output": True, "text": True, "env": clean_environment()}
    jobs = json.loads(lab.exec(host, command, **options).stdout)["jobs"]
    return jobs[0]["nodes"][0] if jobs else None


def wait_for_parent(lab, host, path, address):
    """Until the proxy of the host has the server for its parent."""
    deadline = time.monotonic() + DEADLINE_S
    node = None
    while node is None or node["parent"] != address:
        assert time.monotonic() < deadline, node
        node = node_at(lab, host, path)


def has_all(clock, least, most):
    return least == most == clock * ALL


def expect_steps(workers, is_right, steps=3):
    """Of all workers: what was printed before, and then some more.

    `is_right(clock, least, most)`: of the weights after the clock.
    """

    def expect_step(worker):
        line = worker.next_line()
        assert is_right(*map(int, line.split())), line

    for worker in workers:
        while not worker._lines.empty():
            expect_step(worker)
    for worker in workers:
        for _ in range(steps):
            expect_step(worker)
