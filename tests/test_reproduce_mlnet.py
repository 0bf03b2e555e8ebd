"""MLNET's simulation, repeated: its scenarios, and the page that has its results."""

import json
from pathlib import Path

import pytest

from benchmarks.reproduce_mlnet import scenarios
from benchmarks.reproduce_mlnet.__main__ import EXPERIMENTS
from benchmarks.simulated import table_of

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_scenarios_have_the_papers_numbers():
    scenario = scenarios.one_job(50, 4, "rack", "random")
    assert scenario.network.num_hosts == 1024
    (job,) = scenario.jobs
    assert (len(job.hosts), len(job.servers), job.num_bytes) == (800, 50, 260_000_000_000)
    jobs = scenarios.many_jobs("binary", "random", has_priorities=True).jobs
    assert {(len(job.hosts), len(job.servers)) for job in jobs} == {(200, 50)}
    assert len(jobs) == 20
    assert len({job.priority for job in jobs}) > 5


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_has_the_tables_of_the_records(name):
    records = [
        json.loads(line) for line in (DOCS / "reproduction-mlnet.json").read_text().splitlines()
    ]
    found = [record for record in records if record["experiment"] == name]
    page = (DOCS / "reproduction.md").read_text()
    assert f"<!-- mlnet: {name} -->\n\n{table_of(EXPERIMENTS[name], found)}\n\n<!-- end -->" in page
