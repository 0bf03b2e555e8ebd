"""``dmlcomm regroup``: seats of servers, steering, exact plans, and bad files."""

import builtins
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.reproduce_sip import instances
from dmlcomm.regroup import exact, wiring
from dmlcomm.regroup.cluster import KINDS, Cluster, Job, cost, flows_of, pay_back_s, touched
from dmlcomm.regroup.plan import ordered, plan
from dmlcomm.regroup.published import published
from dmlcomm.regroup.request import parse
from dmlcomm.regroup.throughput import throughput

DOCS = Path(__file__).resolve().parents[1] / "docs"


def random_jobs(cluster, seed):
    """Of all sizes and kinds; some servers have none."""
    draws = random.Random(seed)
    servers = draws.sample(range(cluster.num_servers), cluster.num_servers)
    jobs = []
    while len(servers) > cluster.ports * (seed % 3):
        size = draws.randint(1, 2 * cluster.ports)
        jobs.append(Job(draws.choice(KINDS), tuple(servers[:size])))
        servers = servers[size:]
    return jobs


def flows(jobs):
    return [flow for job in jobs for flow in flows_of(job)]


CLUSTERS = (Cluster(1, 1, 4), Cluster(2, 3, 4), Cluster(2, 3, 4, 2), Cluster(4, 2, 6, 2))


@pytest.mark.parametrize("planner", [published, plan])
@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_every_server_has_a_seat_that_its_circuit_switch_reaches(cluster, planner):
    before = cluster.first_seats()
    for seed in range(20):
        seats = planner(cluster, random_jobs(cluster, seed))
        assert Counter(seats) == dict.fromkeys(range(cluster.num_tors), cluster.ports)
        for server, seat in enumerate(seats):
            assert cluster.domain_of(seat) == cluster.domain_of(before[server])


def test_the_papers_heuristic_by_hand():
    # 2 pods of 2 ToRs of 4: a job inside pod 0, then one over both pods.
    jobs = [Job("ring", (0, 4, 1)), Job("ring", (2, 8, 5, 9, 12))]
    one = published(Cluster(2, 2, 4, 1), jobs)
    assert [one[server] for server in jobs[0].servers] == [0, 0, 0]
    # One circuit switch reaches all: under the first ToRs with room.
    assert [one[server] for server in jobs[1].servers] == [0, 1, 1, 1, 1]
    two = published(Cluster(2, 2, 4, 2), jobs)
    assert [two[server] for server in jobs[1].servers] == [1, 2, 1, 2, 2]


def test_a_plan_completes_tors_and_keeps_who_is_there():
    # Rests of 3, 2, 2 and 1 fill two ToRs of 4 without a cut.
    cluster = Cluster(1, 2, 4)
    jobs = [Job("ring", (0, 1, 4)), Job("ps", (5, 6)), Job("ring", (2, 7)), Job("ps", (3,))]
    seats = plan(cluster, jobs)
    assert cost(cluster, jobs, seats) == 4
    assert touched(cluster.first_seats(), seats) == 2
    assert len({seats[server] for server in (0, 1, 4, 3)}) == 1


def test_a_parameter_server_goes_where_most_of_its_job_is():
    cluster = Cluster(1, 2, 4)
    job = Job("ps", (4, 0, 1, 5, 6))
    seats = plan(cluster, [job])
    assert sorted(Counter(seats[server] for server in job.servers).values()) == [1, 4]
    assert sum(seats[server] == seats[4] for server in job.servers) == 4
    assert ordered(cluster, job, seats).servers[0] == 4


def test_ranks_are_numbered_tor_by_tor():
    cluster = Cluster(2, 2, 4)
    for seed in range(10):
        jobs = [job for job in random_jobs(cluster, seed) if job.kind == "ring"]
        seats = plan(cluster, jobs)
        for job in jobs:
            new = ordered(cluster, job, seats)
            assert sorted(new.servers) == sorted(job.servers)
            leaving = sum(seats[a] != seats[b] for a, b in flows_of(new))
            num_tors = len({seats[server] for server in job.servers})
            assert leaving == (num_tors if num_tors > 1 else 0)


@pytest.mark.parametrize("seed", range(6))
def test_plans_are_near_the_exact_ones(seed):
    pytest.importorskip("scipy")
    cluster = Cluster(1, 4, 8)
    jobs = random_jobs(cluster, seed)
    best = exact.optimum(cluster, jobs)
    ours = plan(cluster, jobs)
    assert best.cost == best.bound <= cost(cluster, jobs, ours) <= best.cost + 1
    assert best.cost <= cost(cluster, jobs, published(cluster, jobs))
    fewest = exact.fewest_moves(cluster, jobs, ours)
    assert cost(cluster, jobs, fewest) == cost(cluster, jobs, ours)
    assert touched(cluster.first_seats(), fewest) <= touched(cluster.first_seats(), ours)


@pytest.mark.parametrize("switches", [1, 2, 4])
@pytest.mark.parametrize("name", instances.CASES)
def test_plans_of_1024_servers_are_within_5_percent_of_what_is_proven(name, switches):
    lines = (DOCS / "reproduction-sip.json").read_text().splitlines()
    (bound,) = (
        found["bound"]
        for found in map(json.loads, lines)
        if (found.get("case"), found.get("switches")) == (name, switches)
    )
    cluster, jobs = instances.cluster(switches), instances.CASES[name]()
    assert bound <= cost(cluster, jobs, plan(cluster, jobs)) <= 1.05 * bound


def test_an_exact_plan_without_scipy_says_what_to_install(monkeypatch):
    found = builtins.__import__

    def without_scipy(name, *rest):
        if name.startswith("scipy"):
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    with pytest.raises(exact.MissingScipyError, match=r"pip install dmlcomm\[plan\]"):
        exact.optimum(Cluster(1, 2, 2), [Job("ring", (0, 1))])


def test_steering_brings_tors_that_talk_to_one_aggregation_switch():
    cluster = Cluster(2, 2, 2)
    traffic = Counter({(0, 3): 5, (1, 2): 4})
    for plane in wiring.steered(cluster, 2, traffic):
        assert plane[0] == plane[3] != plane[1] == plane[2]
    # A second pair of ToR 0 has the next plane.
    planes = wiring.steered(cluster, 2, Counter({(0, 2): 3, (0, 3): 2}))
    assert [plane[0] == plane[2] for plane in planes] == [True, False]
    assert all(Counter(plane) == {0: 2, 1: 2} for plane in planes)


def test_throughput_by_hand():
    # 2 servers of a ToR share one uplink; each pod has 8 Gb/s towards the core.
    cluster, rates = Cluster(2, 2, 2), wiring.Rates(8e9, aggregation_taper=2, core_taper=2)
    static = wiring.static(cluster, rates.uplinks(cluster))
    seats = cluster.first_seats()

    def mean(*jobs, wires=static):
        return throughput(cluster, rates, wires, [Job("ring", job) for job in jobs], seats).mean_bps

    assert mean((0, 1)) == pytest.approx(8e9)
    assert mean((0, 2), (1, 3)) == pytest.approx(4e9)
    assert mean((0, 4), (2, 6)) == pytest.approx(4e9)
    assert mean((0, 4), (2, 6), wires=[[0, 1, 0, 1]]) == pytest.approx(8e9)


def test_one_circuit_switch_brings_back_the_uniform_placement():
    cluster, rates = instances.cluster(1), wiring.Rates(100e9, 2, 8)
    static = wiring.static(cluster, rates.uplinks(cluster))
    for kind in KINDS:
        jobs = instances.mixed(kind)
        seats = published(cluster, jobs)
        regrouped = throughput(cluster, rates, static, jobs, seats)
        uniform = throughput(cluster, rates, static, instances.uniform(kind), cluster.first_seats())
        assert regrouped.mean_bps == pytest.approx(uniform.mean_bps)


def test_when_a_plan_pays_back():
    # 2 s dark are 1 s of work; each second afterwards brings half a second more.
    assert pay_back_s(2, before_s=3, after_s=2) == 6
    assert pay_back_s(2, before_s=2, after_s=2) == float("inf")
    assert pay_back_s(0, before_s=2, after_s=2) == float("inf")


def test_nobody_moves_where_nothing_is_gained():
    cluster = Cluster(4, 16, 16)
    jobs = [Job("ring", tuple(range(100))), Job("ps", tuple(range(100, 301)))]
    assert plan(cluster, jobs) == cluster.first_seats()


FILE = {
    "pods": 2,
    "tors": 2,
    "ports": 4,
    "rate": "10gbit",
    "jobs": [{"kind": "ring", "servers": ["0-1", 9]}],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pods": 0}, r'"pods" of the file: expected a whole number from 1, not 0'),
        ({"switches": 3}, r"as many pods at each circuit switch"),
        ({"taper": 3}, r"a taper of 3 at ToRs of 4 ports: expected a divisor"),
        ({"jobs": []}, r"expected a job with two servers or more"),
        ({"jobs": [{"kind": "tree", "servers": [0]}]}, r'"kind" of job 0 is tree: expected one'),
        ({"jobs": [{"servers": [0, 16]}]}, r'"servers" of job 0: expected numbers from 0 to 15'),
        ({"jobs": [{"servers": [0, 0]}]}, r'"servers" of job 0 names a server twice'),
        ({"jobs": [{"kind": "ps"}]}, r'job 0 has no "servers": give some'),
        ({"jobs": [{"servers": [0, 1]}, {"servers": [1]}]}, r"server 1 is in jobs 0 and 1"),
        ({"rate": "fast"}, r"expected a rate such as"),
        ({"links": 1}, r'the file has no "links": expected pods'),
    ],
)
def test_a_wrong_entry_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        parse(FILE | change)


def test_the_command(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(json.dumps(FILE | {"taper": 2, "core_taper": 2, "dark": "1s"}))

    def run(*arguments):
        command = [sys.executable, "-m", "dmlcomm", "regroup", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    text = run(str(path))
    assert text.returncode == 0, text.stderr
    assert all(part in text.stdout for part in ("as it is", "published", "plan, steered"))
    found = json.loads(run("--json", str(path)).stdout)
    assert len({found["seats"][server] for server in (0, 1, 9)}) == 1
    assert found["plans"][0]["core_flows"] == 2
    assert found["plans"][4]["core_flows"] == 0
    wrong = run(str(tmp_path / "nothing.yaml"))
    assert wrong.returncode == 1
    assert "nothing.yaml cannot be read" in wrong.stderr
