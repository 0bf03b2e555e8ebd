"""Trees in which circuits can be moved, in the lab: graph, moves, and a connection through them."""

import subprocess
import sys

import pytest

from dmlcomm.lab import Lab, LabError, build
from dmlcomm.lab.network import Network
from dmlcomm.lab.routes import routing_table, segments
from dmlcomm.topology import graph as topology
from dmlcomm.topology.shape import Shape, take_move


def circuit(graph, place, switch):
    return topology.move_link(graph, topology.find_circuit(graph, place), switch)


def test_the_tree_has_the_parts_of_its_definition():
    graph = build("sip:2x3x4", [Shape(100), Shape(200), Shape(300)])
    assert len(topology.hosts(graph)) == 24
    address = {str(e): e.address for link in topology.links(graph) for e in link.ends if e.address}
    assert address["host0:eth0"] == "10.0.1.1/16"
    assert address["host23:eth0"] == "10.0.6.4/16"
    above = {link.a.node: link.b.node for link in topology.links(graph)}
    assert above["host7"] == "tor2"
    assert [above[f"tor{t}"] for t in (3, 4)] == ["agg1", "agg2"]
    assert above["agg2"] == "core"
    rates = {(link.level, link.shape.rate_bps) for link in topology.links(graph)}
    assert rates == {(0, 100), (1, 200), (2, 300)}


def test_one_pod_needs_no_core():
    assert "core" not in build("sip:1x2x2")


def test_moves_that_the_kernel_does_not_complete_are_taken_back(monkeypatch):
    network = object.__new__(Network)
    network.graph = build("sip:2x2x2")
    circuits = [topology.find_circuit(network.graph, host) for host in ("host4", "host5")]
    bridges = {}

    def connect(port, bridge):
        if (port.interface, bridge) == (circuits[1].b.interface, "tor1"):
            raise OSError("no memory")
        bridges[port.interface] = bridge

    monkeypatch.setattr(network, "_connect", connect)
    with pytest.raises(LabError, match="host5 to tor1: no memory; nothing has moved"):
        network.move_links([("host4", "tor1"), ("host5", "tor1")])
    assert bridges == {link.b.interface: link.b.node for link in circuits}
    assert [topology.find_circuit(network.graph, str(link.a)) for link in circuits] == circuits


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("sip:2x2", "sip:PxTxN"),
        ("sip:0x2x2", "at least 1"),
        ("sip:20x20x1", "ToRs: at most 254"),
        ("sip:1x1x300", "servers of a ToR: at most 254"),
    ],
)
def test_impossible_tree_is_refused_with_its_reason(spec, reason):
    with pytest.raises(LabError, match=reason):
        build(spec)


def test_two_rates_are_none():
    with pytest.raises(LabError, match="one, or three, not 2"):
        build("sip:2x2x2", [Shape(), Shape()])


def test_all_hosts_reach_each_other_directly_wherever_they_are():
    graph = build("sip:2x2x2")
    circuit(graph, "host4", "tor1")
    circuit(graph, "tor3", "agg1")
    (segment,) = segments(graph)
    assert sorted(end.node for end in segment) == sorted(topology.hosts(graph))
    assert not any(routing_table(graph).values())


def test_a_pulled_uplink_cuts_its_tor_off():
    graph = build("sip:2x2x1")
    link = topology.find_circuit(graph, "tor4")
    topology.update_link(graph, link, link.shape, up=False)
    assert sorted(len(ends) for ends in segments(graph)) == [1, 3]


def test_a_moved_circuit_keeps_address_and_shape():
    graph = build("sip:2x2x2", [Shape(100)])
    link = circuit(graph, "host4", "tor1")
    assert (str(link.a), link.a.address, link.b.node) == ("host4:eth0", "10.0.3.1/16", "tor1")
    assert (link.level, link.shape) == (0, Shape(100))
    link = circuit(graph, "tor3:tor3up", "agg1")
    assert (link.b.node, link.level) == ("agg1", 1)
    assert topology.links(topology.from_json(topology.to_json(graph))) == topology.links(graph)


@pytest.mark.parametrize(
    ("place", "switch", "reason"),
    [
        ("host0", "tor9", "has tor1, tor2, tor3, tor4"),
        ("host0", "agg1", "has tor1, tor2, tor3, tor4"),
        ("tor1", "tor2", "has agg1, agg2"),
        ("agg1", "core", "agg1 cannot be moved"),
        ("core:agg1", "agg2", "cannot be moved"),
        ("host9", "tor1", 'there is no node "host9"'),
    ],
)
def test_what_cannot_be_moved_is_refused(place, switch, reason):
    with pytest.raises(LabError, match=reason):
        circuit(build("sip:2x2x2"), place, switch)


def test_a_switch_is_told_from_other_changes():
    assert take_move(["agg=2", "rate=1mbit"]) == ("agg2", ["rate=1mbit"])
    with pytest.raises(LabError, match="agg=two"):
        take_move(["agg=two"])


# Reduces until rank 0 finds a file, and prints a line per operation; every sum is exact.
JOB = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("dmlcomm")
rank, ranks, number, goes_on = dist.get_rank(), dist.get_world_size(), 0, True
while goes_on:
    vector = torch.full((50_000,), float(rank + number))
    dist.all_reduce(vector)
    assert (vector == ranks * number + ranks * (ranks - 1) // 2).all()
    number += 1
    last = torch.tensor(float(rank == 0 and os.path.exists(sys.argv[1])))
    dist.all_reduce(last)
    goes_on = not last
    if rank == 0:
        print("step", flush=True)
print("fine", flush=True)
dist.destroy_process_group()
"""


def test_a_job_trains_on_while_circuits_are_moved(lab_is_possible, tmp_path):
    end = tmp_path / "end"
    with Lab("sip:2x2x1", rate="100mbit") as lab:
        command = [sys.executable, "-c", JOB, str(end)]
        with lab.popen_run(command, stdout=subprocess.PIPE, text=True) as job:
            steps = (line for line in job.stdout if "step" in line)
            next(steps)
            with pytest.raises(LabError, match="host3:eth0 cannot be moved to agg1"):
                lab.circuit({"host2": "tor1", "host3": "agg1"})
            assert topology.find_circuit(lab.graph(), "host2").b.node == "tor3"
            lab.circuit({"host2": "tor1", "host3": "tor1"}, dark_s=0.01)
            above = {link.a.node: link.b.node for link in lab.links()}
            assert (above["host2"], above["host3"]) == ("tor1", "tor1")
            for _ in range(3):
                next(steps)
            lab.circuit({"host2": "tor3", "tor3": "agg1"})
            for _ in range(3):
                next(steps)
            lab.set("host2:eth0", "tor=4")
            next(steps)
            end.touch()
            assert sum("fine" in line for line in job.stdout) == 4
        assert job.returncode == 0


@pytest.mark.parametrize("dark_s", [-1, 11])
def test_circuits_are_dark_for_some_seconds_at_most(lab_is_possible, dark_s):
    with (
        Lab("sip:1x2x1") as lab,
        pytest.raises(LabError, match=f"may be dark for 0 to 10 s, not {dark_s} s"),
    ):
        lab.circuit({"host0": "tor2"}, dark_s)
