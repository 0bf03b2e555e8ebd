"""``lab check`` and ``lab draw``."""

import os

import pytest

from dmlcomm.lab import Lab, build
from dmlcomm.lab.load import flows
from dmlcomm.topology import graph as topology
from dmlcomm.topology.shape import Shape
from helpers.lab_check import exact_report
from helpers.lab_scripts import lab_command

RATE_BPS = 20_000_000


@pytest.mark.parametrize("spec", ["flat:2,2", "bcube:3,2", "fattree:4"])
def test_the_load_reaches_both_directions_of_every_link_once(spec):
    graph = build(spec)
    crossed = []
    for flow in flows(graph):
        first = topology.find_link(graph, str(flow.source))
        last = topology.find_link(graph, str(flow.target))
        crossed.append(flow.source)
        if first != last:  # through a switch
            crossed.append(last.other(flow.target.node))
    ends = [end for link in topology.links(graph) for end in link.ends]
    assert sorted(map(str, crossed)) == sorted(map(str, ends))


def test_links_that_are_down_or_lead_to_nobody_are_not_loaded():
    graph = build("flat:2,1")
    link = topology.find_link(graph, "host0:eth0")
    topology.update_link(graph, link, link.shape, up=False)
    assert flows(graph) == []


@pytest.mark.alone
@pytest.mark.parametrize("spec", ["flat:3,2", "fattree:2"])
def test_every_link_gives_its_rate_while_all_are_in_use(spec, lab_is_possible):
    with Lab(spec, rate="20mbit") as lab:
        # Data are 1448 of the 1514 bytes of a frame; acknowledgements share the link.
        payload_bps = pytest.approx(RATE_BPS * 1448 / 1514, rel=0.05)
        report = exact_report(lab.name, payload_bps)
    assert len(report["directions"]) == 12
    for direction in report["directions"]:
        assert direction["rate_bps"] == pytest.approx(RATE_BPS, rel=0.05)
    assert report["least_payload_bps"] == payload_bps
    assert 0 <= report["cpu_stolen"] <= report["cpu_busy"] <= 1


def test_a_lab_without_rates_cannot_be_checked(lab_is_possible):
    with Lab("flat:2,1") as lab:
        result = lab_command("check", "--name", lab.name)
    assert result.returncode == 1
    assert "no link in use has a rate" in result.stderr


@pytest.mark.parametrize("spec", ["flat:3,1", "bcube:3,2", "grid:2x2x2", "fattree:4,hosts=5"])
def test_draw_writes_a_picture(spec, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "lab.png"
    result = lab_command("draw", str(file), "--topology", spec, "--rate", "200mbit")
    assert result.returncode == 0, result.stderr
    assert file.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path) == ["lab.png"]


def test_links_are_loaded_by_links_of_the_same_rate():
    graph = build("flat:5,1", [Shape(20_000_000)])
    for place in ("host1:eth0", "host3:eth0"):
        link = topology.find_link(graph, place)
        topology.update_link(graph, link, Shape(5_000_000), up=True)
    pairs = {(flow.source.node, flow.target.node) for flow in flows(graph)}
    slow = {("host1", "host3"), ("host3", "host1")}
    assert pairs == slow | {("host0", "host2"), ("host2", "host4"), ("host4", "host0")}
