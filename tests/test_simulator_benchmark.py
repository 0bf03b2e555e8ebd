"""The simulator against the lab: the scenarios, one of them played small, and what is judged."""

import subprocess
import sys

import pytest

from benchmarks.simulator.__main__ import missed, table
from benchmarks.simulator.lab_play import play
from benchmarks.simulator.scenarios import SCENARIOS
from benchmarks.simulator.together import Together
from dmlcomm.simulate.scenario import parse


def test_all_scenarios_have_sixteen_hosts_and_are_legal():
    assert len(SCENARIOS) == 15
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


def test_a_play_that_does_not_end_is_given_up(lab_is_possible):
    job = {"name": "slow", "op": "all_reduce", "size": "1MB", "compute": "1000s"}
    with pytest.raises(SystemExit, match=r"^the time of 3 s is over; ended have 0 of the 2 ranks"):
        play({"topology": "flat:2,1", "rate": "200mbit", "jobs": [job]}, deadline_s=3)


def start(script: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", script], **pipes)


def test_one_process_that_fails_ends_the_others():
    with Together(60) as together:
        waiting = together.add(start("input()"))
        together.check(together.add(start("raise SystemExit(3)")), "a rank of job0")
        assert waiting.stdout.read() == ""
        together.check(waiting, "a rank of job1")
        later = together.add(start("input()"))
        assert later.wait(60) != 0
    assert together.cause == "a rank of job0 failed with exit code 3: see the output above"


def test_processes_that_end_well_end_nobody():
    with Together(60) as together:
        echoing = together.add(start("print(input())"))
        together.check(together.add(start("pass")), "a rank of job0")
        assert together.cause == ""
        assert echoing.communicate("a word\n", timeout=60)[0] == "a word\n"


def test_processes_end_when_their_time_is_over():
    with Together(0.1) as together:
        waiting = together.add(start("input()"))
        assert waiting.stdout.read() == ""
    assert together.cause == "the time of 0.1 s is over"


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
    rows = list(table([records[0], records[1] | {"runs_s": [0.9, 1.0, 1.25]}]))
    assert rows[1][2:] == ["near", "1.000 s", "1.010 s", "+1.0%"]
    assert rows[2][3] == "1.000 s (0.900 to 1.250)"
