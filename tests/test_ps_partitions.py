"""A network that separates a worker from some servers: these are not lost for the others."""

import contextlib
import re

from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology
from helpers import DEADLINE_S
from helpers.lab_hosts import data_address, management_address, on_host, separate
from helpers.parameter_servers import ServerProcess, WorkerProcess, addresses_of

COUNT = 10_007

# Adds 1 to every element with each step, and tells what it sees of the others.
WORKER = f"""
import sys
import numpy as np
from dmlcomm import errors
from dmlcomm.ps import Client

ONES = np.ones({COUNT}, np.float32)

with Client(sys.argv[1], worker=int(sys.argv[2]), timeout_s={DEADLINE_S}) as client:
    client.init("w", 0 * ONES, rule="add", reduce="sum")
    before = workers = alone = 0
    try:
        while alone < 5:
            weights = client.push_pull("w", ONES)
            workers, before = weights[0] - before, weights[0]
            alone = alone + 1 if workers == 1 else 0
            if before == 20:
                print("trains", flush=True)
        print("goes on", client.lost_servers, flush=True)
    except errors.PsServerLostError as error:
        print(error, flush=True)
    sys.stdin.readline()
"""

# A silent connection is taken for lost after so long.
TIMEOUT = {"DMLCOMM_PEER_TIMEOUT_S": "3"}


def test_worker_that_is_cut_off_from_two_of_three_servers_is_named_and_the_others_go_on(
    lab_is_possible,
):
    with Lab("flat:5,1", rate="500mbit") as lab, contextlib.ExitStack() as stack:
        hosts = topology.hosts(lab.graph())
        processes = []
        for index, host in enumerate(hosts[:3]):
            options = (
                "--listen",
                f"{management_address(lab, host)}:0",
                "--insecure",
                "--index",
                str(index),
            )
            job = ("--servers", "3", "--workers", "2", "--replicas", "1")
            server = ServerProcess(*options, *job, **on_host(lab, host, **TIMEOUT))
            processes.append(stack.enter_context(server))
        cut_off, other = (
            stack.enter_context(
                WorkerProcess(
                    *(WORKER, addresses_of(processes), str(number)), **on_host(lab, host, **TIMEOUT)
                )
            )
            for number, host in enumerate(hosts[3:])
        )
        for worker in (cut_off, other):
            worker.expect("trains")
        far = [data_address(lab, host) for host in hosts[:2]]
        separate(lab, hosts[3], far)
        error = cut_off.next_line()
        # Servers lose the worker as soon as it loses them: one that has says so.
        found = re.search(
            rf"worker 0 \(host {hosts[3]}\) is cut off from server ([01]) .*"
            r"(, which server (?!\1)\d reaches|; server \d answers that the servers have taken)",
            error,
        )
        assert found, error
        cut_off.kill()
        other.expect("goes on []")
