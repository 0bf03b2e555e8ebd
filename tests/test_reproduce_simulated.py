"""Simulations of papers, repeated: their scenarios, and the page that has their results."""

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.reproduce_mlnet import __main__ as mlnet
from benchmarks.reproduce_mlnet import scenarios
from benchmarks.reproduce_psnet_simulated import __main__ as psnet_simulated
from benchmarks.reproduce_sip import __main__ as sip
from benchmarks.reproduce_sip import instances
from benchmarks.simulated import table_of
from benchmarks.strategy import __main__ as strategy

DOCS = Path(__file__).resolve().parents[1] / "docs"


def records_of(paper):
    lines = (DOCS / f"reproduction-{paper}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_mlnets_scenarios_have_the_papers_numbers():
    scenario = scenarios.one_job(50, 4, "rack", "random")
    assert scenario.network.num_hosts == 1024
    (job,) = scenario.jobs
    assert (len(job.hosts), len(job.servers), job.num_bytes) == (800, 50, 260_000_000_000)
    jobs = scenarios.many_jobs("binary", "random", has_priorities=True).jobs
    assert {(len(job.hosts), len(job.servers)) for job in jobs} == {(200, 50)}
    assert len(jobs) == 20
    assert len({job.priority for job in jobs}) > 5


def test_no_step_of_a_psnet_is_longer_for_moves_than_their_dark_time():
    records = [one for one in records_of("psnet_simulated") if one["experiment"] == "moves"]
    assert sum("+" in record["topology"] for record in records) >= 4
    for record in records:
        first, last = record["steps_s"][0], record["steps_s"][-1]
        assert max(record["steps_s"]) <= max(first, last) + record["dark_s"]
        assert first == pytest.approx(record["before_max_s"], rel=0.02)
        assert last == pytest.approx(record["after_max_s"], rel=0.07)


def test_links_carry_bytes_times_hops_on_average():
    records = [one for one in records_of("mlnet") if one["experiment"] == "links"]
    mean = {record["tree"]: record["mean_bytes"] for record in records}
    # Between random hosts a message passes 5.86 links, with whatever tree.
    expected = 2 * 800 * scenarios.MODEL_BYTES * 5.86 / records[0]["num_links"]
    assert mean["BASELINE"] == pytest.approx(expected, rel=0.01)
    assert mean["BINARY"] == pytest.approx(expected, rel=0.01)
    assert mean["RACK"] == pytest.approx(mean["binary in racks"], rel=0.01)
    assert mean["RACK"] < expected / 2


def test_what_links_carry_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    records = [one for one in records_of("mlnet") if one["experiment"] == "links"]
    mlnet.EXPERIMENTS["links"].draw(records, tmp_path / "links.png")
    assert (tmp_path / "links.png").read_bytes().startswith(b"\x89PNG")


def test_several_draws_are_a_median_with_the_least_and_the_most():
    records = [
        {"servers": 50, "over_subscription": 4, "tree": tree, "makespan_s": seconds, "cpu_s": 2.0}
        for tree, of_tree in (
            ("BASELINE", (100.0, 200.0, 300.0)),
            ("BINARY", (20.0, 20.0, 90.0)),
            ("RACK", (10.0, 20.0, 30.0)),
        )
        for seconds in of_tree
    ]
    (_, row) = mlnet.EXPERIMENTS["makespans"].table(records)
    assert row[2:7] == ["200 s (100 to 300)", "20% (10 to 30)", "10% (10 to 10)", "34%", "27%"]


def test_workers_that_are_drawn_one_by_one_share_hosts():
    (job,) = scenarios.one_job(50, 1, "binary", "random", is_shared=True).jobs
    assert len(job.hosts) == 800
    assert 3 <= max(Counter(job.hosts).values()) <= 8


@pytest.mark.parametrize("kind", instances.SIZE)
def test_half_of_a_pod_talks_to_other_pods(kind):
    jobs = instances.mixed(kind)
    assert sorted(server for job in jobs for server in job.servers) == list(range(1024))
    pods = [{server // instances.SERVERS_OF_POD for server in job.servers} for job in jobs]
    assert [len(some) for some in pods].count(1) == len(jobs) / 2
    assert [len(some) for some in pods].count(4) == len(jobs) / 2


PAGES = {
    "mlnet": "reproduction-mlnet.md",
    "psnet_simulated": "reproduction.md",
    "sip": "reproduction-sip.md",
    "strategy": "strategy.md",
}
PAPERS = {"mlnet": mlnet, "psnet_simulated": psnet_simulated, "sip": sip, "strategy": strategy}


@pytest.mark.parametrize(
    ("paper", "name"),
    [(paper, name) for paper, module in PAPERS.items() for name in module.EXPERIMENTS],
)
def test_the_page_has_the_tables_of_the_records(paper, name):
    experiment = PAPERS[paper].EXPERIMENTS[name]
    records = [one for one in records_of(paper) if one["experiment"] == name]
    table = table_of(experiment, records)
    page = (DOCS / PAGES[paper]).read_text()
    assert f"<!-- {paper}: {name} -->\n\n{table}\n\n<!-- end -->" in page
