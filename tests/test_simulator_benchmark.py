"""The simulator against the lab: the scenarios, one of them played small, and what is judged."""

from benchmarks.simulator.__main__ import missed, table
from benchmarks.simulator.lab_play import play
from benchmarks.simulator.scenarios import SCENARIOS
from dmlcomm.simulate.scenario import parse


def test_all_scenarios_have_sixteen_hosts_and_are_legal():
    assert len(SCENARIOS) == 12
    for name, content in SCENARIOS.items():
        assert parse(content).network.num_hosts == 16, name


def test_jobs_of_the_lab_are_right_while_circuits_move(lab_is_possible):
    job = {"op": "push_pull", "size": "1MB", "steps": 3, "compute": "100ms"}
    moved = {"at": "150ms", "circuits": {"worker0": "tor2"}, "dark": "20ms"}
    network = {"topology": "psnet:1,2,2", "rate": "200mbit", "jobs": [job]}
    (played,) = play(network | {"events": [moved]}).values()
    assert len(played.begins) == len(played.ends) == 2
    assert played.wrong == 0
    # Computing, and pushes and pulls of 1 MB each.
    assert played.seconds > 3 * (0.1 + 2 * 8e6 / 200e6)


def test_jobs_of_the_lab_come_through_proxies(lab_is_possible):
    job = {"op": "push_pull", "size": "1MB", "steps": 2, "servers": [0], "hosts": [1, 2]}
    job |= {"tree": "chain", "answer": "pieces"}
    (played,) = play({"topology": "flat:3,1", "rate": "200mbit", "jobs": [job]}).values()
    assert played.wrong == 0


def test_bars_are_of_each_job_and_of_all():
    name = next(iter(SCENARIOS))
    records = [
        {"scenario": name, "job": job, "lab_s": 1.0, "simulated_s": 1 + d, "difference": d}
        for job, d in (("near", 0.01), ("far", -0.12))
    ]
    assert missed(records) == [
        f"{name}, far: -12.0%, at most 10%",
        "6.5% on average, at most 5%",
    ]
    assert missed(records[:1]) == []
    rows = list(table(records))
    assert rows[1][2:] == ["near", "1.000 s", "1.010 s", "+1.0%"]
