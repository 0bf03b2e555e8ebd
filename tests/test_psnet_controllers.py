"""PSNet's control plane: what it plans, and controllers that move workers while they train."""

import contextlib
import json
import subprocess
import sys

import pytest

from dmlcomm.errors import LabError
from dmlcomm.lab import Lab
from dmlcomm.psnet.controllers import paths, plan
from dmlcomm.topology import graph as topology
from dmlcomm.topology.builders import build
from dmlcomm.topology.shape import Shape

STEPS_BEFORE, STEPS = 5, 40

# Pushes rank + 1 everywhere; the sum of all is exact.
WORKER = f"""
import os, sys
import numpy as np
from dmlcomm.ps import Client
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
weights = np.zeros(50_000, np.float32)
with Client(sys.argv[1], worker=rank, timeout_s=60) as client:
    client.init("net", weights, rule="add", reduce="sum")
    for step in range({STEPS}):
        client.push_pull("net", np.full(weights.size, np.float32(rank + 1)), out=weights)
        expected = (step + 1) * ranks * (ranks + 1) // 2
        assert (weights == expected).all(), (step, weights[0], expected)
        print("step", step, flush=True)
"""


def shapes():
    return [Shape(100_000_000)]


def workers_of(graph):
    return topology.hosts_of_role(graph, "worker")


@pytest.mark.parametrize(
    ("spec", "moves"),
    [
        ("psnet:2,6,3@1,1,4", {"worker4": "tor1", "worker5": "tor2"}),
        ("psnet:2,6,3", {}),
        ("psnet:2,7,3@2,2,3", {}),
        ("psnet:1,5,2@5,0", {"worker3": "tor2", "worker4": "tor2"}),
    ],
)
def test_as_few_workers_as_possible_move_to_an_even_deployment(spec, moves):
    graph = build(spec, shapes())
    assert plan(graph, workers_of(graph), topology.hosts_of_role(graph, "server")) == moves


def test_a_tor_whose_nics_are_slow_gets_fewer_workers():
    graph = build("psnet:2,6,3", shapes())
    link = topology.find_link(graph, "server1:eth2")
    topology.update_link(graph, link, Shape(50_000_000), up=True)
    servers = topology.hosts_of_role(graph, "server")
    assert plan(graph, workers_of(graph), servers) == {"worker5": "tor1"}


def test_paths_lead_to_the_nic_at_the_workers_tor():
    graph = build("psnet:2,3,3", shapes())
    found = paths(graph, ["worker0", "worker2"], ["server1"])
    addresses = [end.ip for end in topology.ends_of(graph, "server1")]
    assert found == {
        ("worker0", "server1"): ("eth0", addresses[0]),
        ("worker2", "server1"): ("eth0", addresses[2]),
    }


def test_hosts_that_are_none_are_named():
    graph = build("psnet:1,2,2", shapes())
    with pytest.raises(LabError, match="server0 is no worker of psnet:1,2,2: expected worker0, w"):
        plan(graph, ["server0"], ["server0"])
    with pytest.raises(LabError, match="flat:2,1 has no worker: build a psnet"):
        plan(build("flat:2,1", shapes()), [], [])


@contextlib.contextmanager
def controller(*arguments):
    command = [sys.executable, "-m", "dmlcomm", "psnet", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert "listens at" in process.stdout.readline()
            yield process
        finally:
            process.terminate()


def place(*arguments):
    command = [sys.executable, "-m", "dmlcomm", "psnet", "place", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_workers_move_in_the_papers_order_while_they_train(lab_is_possible, tmp_path):
    sockets = {name: tmp_path / name for name in ("circuits", "network", "topology")}
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab("psnet:1,3,2@3,0", rate="100mbit"))
        named = ("--name", lab.name)
        ccc = stack.enter_context(controller("circuits", "--listen", sockets["circuits"], *named))
        cnc = stack.enter_context(controller("network", "--listen", sockets["network"], *named))
        others = ("--circuits", sockets["circuits"], "--network", sockets["network"])
        tc = stack.enter_context(
            controller("topology", "--listen", sockets["topology"], *others, *named)
        )
        before = {
            worker: topology.ends_of(lab.graph(), worker) for worker in workers_of(lab.graph())
        }
        server = lab.graph().nodes["server0"]["management"].partition("/")[0] + ":7000"
        serve = [sys.executable, "-m", "dmlcomm", "ps", "serve", "--insecure", "--workers", "3"]
        serving = lab.popen_run(
            [*serve, "--listen", server, "--servers", server],
            *("--on", "server0"),
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(serving.wait)
        stack.callback(serving.terminate)
        assert "listens" in serving.stdout.readline()
        command = [sys.executable, "-c", WORKER, server]
        process = lab.popen_run(command, "--on", "worker*", stdout=subprocess.PIPE, text=True)
        placed = None
        for line in process.stdout:
            step = line.split()[2]
            if placed is None and int(step) == STEPS_BEFORE:
                placed = place("--controller", sockets["topology"], "--size", "200kB")
        assert process.wait() == 0
        assert placed.returncode == 0, placed.stderr
        assert json.loads(placed.stdout)["moves"] == {"worker2": "tor2"}
        graph = lab.graph()
        assert {worker: topology.ends_of(graph, worker) for worker in before} == before
        assert topology.find_link(graph, "worker2:eth0").b.node == "tor2"
        again = place("--controller", sockets["topology"])
        assert json.loads(again.stdout)["moves"] == {}
        nobody = place("--controller", sockets["topology"], "--worker", "worker9")
        assert (nobody.returncode, "worker9 is no worker" in nobody.stderr) == (1, True)
        for process in (tc, ccc, cnc):
            process.terminate()
        lines = [
            (float(line.split()[0]), line.split(": ", 1)[1][0])
            for process in (tc, ccc, cnc)
            for line in process.stdout
        ]
        numbers = [number for _, number in sorted(lines)]
        assert numbers[:8] == list("12345678")
