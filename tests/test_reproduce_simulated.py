"""Simulations of papers, repeated: their scenarios, and the page that has their results."""

import json
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
    lines = (DOCS / "reproduction-psnet_simulated.json").read_text().splitlines()
    records = [one for one in map(json.loads, lines) if one["experiment"] == "moves"]
    assert sum("+" in record["topology"] for record in records) >= 4
    for record in records:
        first, last = record["steps_s"][0], record["steps_s"][-1]
        assert max(record["steps_s"]) <= max(first, last) + record["dark_s"]
        assert first == pytest.approx(record["before_max_s"], rel=0.02)
        assert last == pytest.approx(record["after_max_s"], rel=0.07)


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
    lines = (DOCS / f"reproduction-{paper}.json").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    table = table_of(experiment, [one for one in records if one["experiment"] == name])
    page = (DOCS / PAGES[paper]).read_text()
    assert f"<!-- {paper}: {name} -->\n\n{table}\n\n<!-- end -->" in page
