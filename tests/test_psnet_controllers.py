"""PSNet's control plane: what it plans, and controllers that move workers while they train."""

import contextlib
import json
import subprocess
import sys
import time

import pytest

from dmlcomm.errors import LabError
from dmlcomm.lab import Lab
from dmlcomm.psnet.controllers import expected_s, paths, plan
from dmlcomm.psnet.equations import Job
from dmlcomm.topology import graph as topology
from dmlcomm.topology.builders import build
from dmlcomm.topology.shape import Shape

# Pushes rank + 1, and prints when a step began; the sum of all is exact. The first element counts
# ranks that have seen a file: when all have, they end.
WORKER = """
import os, sys, time
import numpy as np
from dmlcomm.ps import Client
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
weights = np.zeros(50_000, np.float32)
with Client(sys.argv[1], worker=rank, timeout_s=60) as client:
    client.init("net", weights, rule="add", reduce="sum")
    seen, expected = 0, 0
    while seen < ranks:
        before, begin = weights[0], time.monotonic()
        gradient = np.full(weights.size, np.float32(rank + 1))
        gradient[0] = os.path.exists(sys.argv[2])
        client.push_pull("net", gradient, out=weights)
        seen = weights[0] - before
        expected += ranks * (ranks + 1) // 2
        assert (weights[1:] == expected).all(), (weights[1], expected)
        print(begin, flush=True)
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
        # Workers stay in their module.
        ("psnet:1,2,2@2,0+1,3,2@0,3", {"worker1": "tor2", "worker4": "tor3"}),
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


def expected(spec, change=None):
    """Of a model of 25 MB, and computing of 3 s."""
    graph = build(spec, shapes())
    workers, servers = workers_of(graph), topology.hosts_of_role(graph, "server")
    if change:
        link = topology.find_link(graph, change)
        topology.update_link(graph, link, Shape(50_000_000), up=True)
    at = {worker: topology.links_of(graph, worker)[0].b.node for worker in workers}
    job = Job(25e6, len(servers), len(workers))
    return expected_s(graph, job, at, servers, compute_s=3.0)


def test_the_times_of_a_push_and_of_a_batch_are_expected():
    # Shards of 12.5 MB: 1 s at 100 Mb/s. Four workers share a server's port, then two.
    found = expected("psnet:2,6,3@1,1,4")
    assert found["push_s"] == pytest.approx(4.0, rel=1e-3)
    assert (found["batch_min_s"], found["batch_max_s"]) == pytest.approx((4.0, 11.0), rel=1e-3)
    found = expected("psnet:2,6,3")
    assert found["push_s"] == pytest.approx(2.0, rel=1e-3)
    assert (found["batch_min_s"], found["batch_max_s"]) == pytest.approx((3.0, 7.0), rel=1e-3)
    assert expected("psnet:2,6,3,K=2@1,1,4")["push_s"] == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(
    ("spec", "push_s", "pull_s"),
    # Shards of 12.5 MB, 1 s at 100 Mb/s: as many seconds as workers share a port of a server.
    [
        ("psnet:1,3,3+1,3,3", 2, 2),
        # Four at the first ToR, and one of the other module: weights take the ports of their ToRs,
        # pushes those of workers' numbers.
        ("psnet:1,6,3@4,1,1+1,3,3", 5, 5),
        ("psnet:1,3,3+1,6,3@1,1,4", 5, 5),
        ("psnet:1,2,2@2,0+1,2,2@0,2", 3, 2),
        # Eight workers push to two servers each, two thirds of a second, through three ports.
        ("psnet:2,1,3+1,8,3", 16 / 3 * 2 / 3, 16 / 3 * 2 / 3),
    ],
)
def test_the_times_in_two_modules_are_those_of_equation_6(spec, push_s, pull_s):
    found = expected(spec)
    assert (found["push_s"], found["pull_s"]) == pytest.approx((push_s, pull_s), rel=1e-3)
    assert found["batch_max_s"] == pytest.approx(3 + push_s + pull_s, rel=1e-3)


@pytest.mark.parametrize(
    ("spec", "change"),
    [
        ("psnet:1,2,2+1,2,2+1,2,2", None),
        ("psnet:2,6,3", "worker0:eth0"),
        ("psnet:2,6,3", "server0:eth1"),
    ],
)
def test_nothing_is_expected_where_the_equation_says_nothing(spec, change):
    assert expected(spec, change) is None


def test_paths_lead_to_the_nic_at_the_workers_tor():
    graph = build("psnet:2,3,3", shapes())
    found = paths(graph, ["worker0", "worker2"], ["server1"])
    addresses = [end.ip for end in topology.ends_of(graph, "server1")]
    assert found == {
        ("worker0", "server1"): ("eth0", addresses[0]),
        ("worker2", "server1"): ("eth0", addresses[2]),
    }


def test_paths_to_another_module_lead_to_the_nic_at_the_tor_of_the_same_number():
    graph = build("psnet:1,2,2+1,2,2", shapes())
    assert paths(graph, ["worker1"], ["server0", "server1"]) == {
        ("worker1", "server0"): ("eth0", "10.1.2.201"),
        ("worker1", "server1"): ("eth0", "10.2.2.201"),
    }


def test_workers_whose_servers_are_in_another_module_are_spread_evenly():
    graph = build("psnet:1,2,2@2,0+1,2,2", shapes())
    assert plan(graph, workers_of(graph), ["server1"]) == {"worker1": "tor2"}


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


@contextlib.contextmanager
def serving(lab):
    """`dmlcomm ps serve` on all servers; gives their addresses."""
    graph = lab.graph()
    nodes = [graph.nodes[node] for node in topology.hosts_of_role(graph, "server")]
    addresses = [node["management"].partition("/")[0] + ":7000" for node in nodes]
    serve = [sys.executable, "-m", "dmlcomm", "ps", "serve", "--insecure"]
    serve += ["--workers", str(len(workers_of(graph))), "--servers", ",".join(addresses)]
    own = "--index $RANK --listen ${addresses[RANK]}"
    command = ["bash", "-c", f"addresses=({' '.join(addresses)}); exec {' '.join(serve)} {own}"]
    pipe = {"stdout": subprocess.PIPE, "text": True}
    with lab.popen_run(command, "--on", "server*", **pipe) as process:
        try:
            for _ in nodes:
                assert "listens" in process.stdout.readline()
            yield ",".join(addresses)
        finally:
            process.terminate()


def await_steps(job, ranks):
    """Until each rank has made a step that began after this call."""
    now = time.monotonic()
    missing = set(range(ranks))
    while missing:
        line = job.stdout.readline()
        assert line, f"the job has ended, without a step of {missing}"
        rank, begin = line.strip("[").split("] ")
        if float(begin) > now:
            missing.discard(int(rank))


def test_workers_of_two_modules_move_in_the_papers_order_while_they_train(
    lab_is_possible, tmp_path
):
    sockets = {name: tmp_path / name for name in ("circuits", "network", "topology")}
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab("psnet:1,2,2@2,0+1,2,2@0,2", rate="100mbit"))
        named = ("--name", lab.name)
        ccc = stack.enter_context(controller("circuits", "--listen", sockets["circuits"], *named))
        cnc = stack.enter_context(controller("network", "--listen", sockets["network"], *named))
        others = ("--circuits", sockets["circuits"], "--network", sockets["network"])
        tc = stack.enter_context(
            controller("topology", "--listen", sockets["topology"], *others, *named)
        )
        workers = workers_of(lab.graph())
        before = {worker: topology.ends_of(lab.graph(), worker) for worker in workers}
        addresses, end = stack.enter_context(serving(lab)), tmp_path / "end"
        command = [sys.executable, "-c", WORKER, addresses, str(end)]
        job = lab.popen_run(command, "--on", "worker*", stdout=subprocess.PIPE, text=True)
        stack.callback(job.wait)
        stack.callback(job.terminate)
        await_steps(job, len(workers))
        placed = place("--controller", sockets["topology"], "--size", "200kB")
        assert placed.returncode == 0, placed.stderr
        told = json.loads(placed.stdout)
        assert (told["moves"], told["paths"]) == ({"worker1": "tor2", "worker3": "tor3"}, 8)
        await_steps(job, len(workers))
        end.touch()
        job.stdout.read()
        assert job.wait() == 0
        graph = lab.graph()
        assert {worker: topology.ends_of(graph, worker) for worker in before} == before
        assert topology.find_link(graph, "worker1:eth0").b.node == "tor2"
        assert topology.find_link(graph, "worker3:eth0").b.node == "tor3"
        again = place("--controller", sockets["topology"])
        assert json.loads(again.stdout)["moves"] == {}
        nobody = place("--controller", sockets["topology"], "--worker", "worker9")
        assert (nobody.returncode, "worker9 is no worker" in nobody.stderr) == (1, True)
        controllers = (tc, ccc, cnc)
        for process in controllers:
            process.terminate()
        lines = [
            (float(line.split()[0]), line.split(": ", 1)[1][0])
            for process in controllers
            for line in process.stdout
        ]
        numbers = [number for _, number in sorted(lines)]
        assert numbers[:8] == list("12345678")
        assert [process.wait() for process in controllers] == [0, 0, 0]
        assert list(tmp_path.iterdir()) == [end]  # no socket is left
