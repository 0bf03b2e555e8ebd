"""``dmlcomm plan``, plan files, and jobs that use them."""

import json
import os
import re
import statistics
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from benchmarks.bars import plan_of_65536_hosts
from dmlcomm import _core, errors
from dmlcomm.lab import Lab
from dmlcomm.planning import measure, network, plan_file
from dmlcomm.planning.network import PlanError
from dmlcomm.planning.pricing import bound_s, choose
from dmlcomm.planning.shared_cores import PROBE_BYTES, on_shared_cores
from helpers import run_ranks
from helpers.warm_python import warmed

PLAN = """\
plan: 1
hosts: 1
ranks_per_host: 2
grid: []
algorithms:
  all_reduce:
    0: recursive_doubling
    4096: ring
"""


# A job of one rank.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def run_command(*arguments, **environment):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DMLCOMM_")}
    return subprocess.run(
        [sys.executable, "-m", "dmlcomm", *arguments],
        env=inherited | environment | {"COLUMNS": "140"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def plan(*arguments):
    return run_command("plan", *arguments)


def test_the_table_has_every_algorithm_the_bound_and_the_choice():
    result = plan("--topology", "bcube:3,2", "--rate", "200mbit", "--size", "12.5MB")
    assert result.returncode == 0, result.stderr
    assert "bound 444.4 ms" in result.stdout
    assert "1448 of 1514 bytes" in result.stdout
    assert "bml_ring: the least time, which a job takes" in result.stdout


@pytest.mark.parametrize("arguments", [("--topology", "flat:6,1"), ("--topology", "grid:3x2")])
def test_schedules_are_verified_on_request(arguments):
    result = plan(*arguments, "--rate", "1gbit", "--op", "all_gather", "--verify")
    assert result.returncode == 0, result.stderr
    assert "schedules of all_gather on" in result.stdout
    result = plan("--topology", "flat:65,1", "--rate", "1gbit", "--verify")
    assert result.returncode == 1
    assert "65 ranks are too many to verify" in result.stderr


def test_a_choice_that_the_simulation_does_not_share_is_shown_with_both():
    net = network.parse("flat:9,1", "1gbit")
    found = net.core()
    found.alpha_s = 1e-2  # of which a job does not know
    choice = choose(net, found, "all_reduce", 1 << 20)
    assert choice.chosen.name == choose(net, net.core(), "all_reduce", 1 << 20).chosen.name
    assert choice.fastest.seconds < choice.chosen.seconds
    for name in (choice.chosen.name, choice.fastest.name):
        assert name in f"{choice.chosen.name}: {choice.reason}"
    assert "a plan file names it" in choice.reason


def test_65536_hosts_are_planned_in_two_gigabytes():
    command = plan_of_65536_hosts("--json")
    told = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["hosts"] == 65536
    assert found["chosen"] in ("bml", "bml_ring")
    by_name = {entry["name"]: entry for entry in found["algorithms"]}
    assert by_name["bml_ring"]["priced_by"] == "lockstep"
    assert 1 < by_name["bml_ring"]["seconds"] / found["bound_s"] < 1.5


def test_bml_on_65536_hosts_takes_what_theory_says():
    planned = network.parse("bcube:16,4", "1gbit", mtu=9000)
    core = planned.core()
    core.alpha_s, core.overhead_s, core.contention = 1e-9, 1e-12, 1.0
    prices = _core.compare(core, planned.of_job(), "all_reduce", 100_000_000, 4).prices
    num_hosts = 16**4
    theory = 2 * (num_hosts - 1) / (4 * num_hosts) * 8e8 / (1e9 * planned.efficiency)
    for name in ("bml", "bml_ring"):
        (price,) = [price for price in prices if price.name == name]
        assert price.seconds == pytest.approx(theory, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--topology", "torus:3", "--rate", "1gbit"), "is not flat:N,k"),
        (("--topology", "bcube:3,2"), "give a rate (--rate)"),
        (("--rate", "1gbit"), "give --topology"),
        (("--topology", "bcube:3,2", "--rate", "1gbit,1gbit,1gbit"), "has 2 rails"),
        (("--topology", "bcube:3,2", "--rate", "unlimited"), "needs rates"),
        (("--topology", "bcube:3,2", "--rate", "1gbit", "--size", "1TB"), "is not a size"),
        (("--topology", "bcube:3,2", "--rate", "1gbit", "--op", "send"), "no operation"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(arguments, said):
    result = plan(*arguments)
    assert result.returncode == 1
    assert said in " ".join(result.stderr.split())


def test_bounds_add_up_all_rates_of_a_host():
    two = network.parse("flat:4,2", "100mbit,300mbit", ranks_per_host=2)
    assert bound_s(two, "all_reduce", 10**6) == pytest.approx(2 * 3 / 4 * 8e6 / 400e6)
    assert bound_s(two, "all_gather", 10**6) == pytest.approx(3 / 4 * 8e6 / 400e6)
    assert bound_s(two, "broadcast", 10**6) == pytest.approx(8e6 / 400e6)
    assert bound_s(two, "all_to_all", 10**6) == pytest.approx(2 * 3 / 4 * 8e6 / 400e6)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("text", ["flat:5,1", "flat:3,2", "bcube:2,2", "grid:3x2"])
def test_nothing_is_faster_than_the_bound(text, op):
    net = network.parse(text, "1gbit")
    choice = choose(net, net.core(), op, 10**6)
    assert all(price.seconds > choice.bound_s for price in choice.prices)


def test_a_topology_file_has_rates(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("grid: [4, 3]\nrates: {0: 10gbit, 1: 25gbit}\n")
    net = network.parse(str(path), "")
    assert (net.num_hosts, net.sizes, net.rates_bps) == (12, (4, 3), (10e9, 25e9))


def test_a_written_plan_reads_as_it_was(tmp_path):
    path = str(tmp_path / "plan.yaml")
    assert plan("--topology", "bcube:2,2", "--rate", "1gbit", "--output", path).returncode == 0
    read = plan_file.load(path)
    assert read.grid == (2, 2)
    assert read.fits((2, 2), (0, 1, 2, 3))
    assert not read.fits((2, 2), (0, 0, 1, 1, 2, 2, 3, 3))
    assert set(read.algorithms) >= {"all_reduce", "all_gather"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("plan: 1", "plan: 2", "p.yaml:1: version 2"),
        ("hosts: 1", "host: 1", "p.yaml:2: unknown key host"),
        ("hosts: 1", "hosts: one", "p.yaml:2: expected a whole number"),
        ("grid: []\n", "", "the key grid is missing"),
        ("grid: []", "plan: 1", "p.yaml:4: expected a key that is not there twice"),
        ("4096: ring", "4096: rings", 'p.yaml:8: .*no algorithm "rings"'),
        ("0: recursive", "1: recursive", "p.yaml:7: .*ascend from 0"),
        ("plan: 1", "plan: [", "p.yaml is not legal YAML"),
    ],
)
def test_errors_of_a_plan_file_name_the_line(old, new, said):
    with pytest.raises(PlanError, match=said):
        plan_file.parse(PLAN.replace(old, new, 1), "p.yaml")


def _algorithms(rank, _size):
    """What a rank says of an operation that the other does not join."""
    total = torch.ones(2048)
    dist.all_reduce(total)
    said = []
    if rank == 0:
        with pytest.raises(errors.CollectiveMismatchError) as caught:
            dist.all_reduce(torch.ones(2048))
        said.append(str(caught.value))
    else:
        with pytest.raises(errors.CollectiveMismatchError):
            dist.all_reduce(torch.ones(8))
    return total[0].item(), said


def test_a_job_takes_its_algorithms_from_the_plan(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    results = run_ranks(_algorithms, 2, env={"DMLCOMM_PLAN": str(path)})
    assert [total for total, _ in results] == [2, 2]
    message = results[0][1][0]
    assert "ring" in message
    assert "recursive_doubling" in message


def _disagreement(rank, _size, num_bytes):
    """What rank 0 says of an all_reduce that the other rank does not join."""
    with pytest.raises(errors.CollectiveMismatchError) as caught:
        dist.all_reduce(torch.ones(num_bytes // 4 if rank == 0 else 1))
    return str(caught.value)


@pytest.mark.parametrize("num_bytes", [4096, 65536, 4 << 20])
def test_a_job_chooses_what_plan_says(num_bytes):
    on_one_host = network.parse("flat:1,1", "1gbit", 2)
    name = choose(on_one_host, on_one_host.core(), "all_reduce", num_bytes).chosen.name
    assert f", {name})" in run_ranks(_disagreement, 2, num_bytes)[0]


def test_a_plan_may_name_the_ways_through_memory(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("recursive_doubling", "peer_memory").replace("ring", "slots"))
    message = run_ranks(_algorithms, 2, env={"DMLCOMM_PLAN": str(path)})[0][1][0]
    assert "slots" in message
    assert "peer_memory" in message


def _refused(rank, size, directory):
    """Each rank has a plan file of its own; returns the error."""
    os.environ["DMLCOMM_PLAN"] = f"{directory}/{rank}.yaml"
    store = dist.FileStore(f"{directory}/store", size)
    with pytest.raises(errors.CommError) as caught:
        dist.init_process_group("dmlcomm", store=store, rank=rank, world_size=size)
    return str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (PLAN, PLAN.replace("4096", "8192"), "DMLCOMM_PLAN differs: rank 0 .* rank 1 "),
        (PLAN, PLAN.replace("ring", "rings"), "rank 1 .*1.yaml:8: "),
        (PLAN.replace("hosts: 1", "hosts: 2"),) * 2 + ("the plan is for flat, 2 hosts",),
    ],
)
def test_ranks_refuse_plans_that_differ_or_do_not_fit(tmp_path, first, second, said):
    for rank, text in enumerate((first, second)):
        (tmp_path / f"{rank}.yaml").write_text(text)
    for message in run_ranks(_refused, 2, str(tmp_path), make_group=False):
        assert re.search(said, message), message


def test_a_fit_finds_latency_and_rate_of_a_line():
    sizes = measure.SMALL_BYTES + measure.LARGE_BYTES
    found = measure.fit({size: 50e-6 + size * 40e-9 for size in sizes})
    assert found.alpha_s == pytest.approx(50e-6)
    assert found.beta_s_per_byte == pytest.approx(40e-9)
    assert found.error < 1e-6


def test_latency_where_cores_are_shared_follows_a_small_all_reduce():
    planned = network.parse("bcube:3,2", "10gbit", 1, 9000)

    def seconds(topology, size):
        return choose(planned, topology, "all_reduce", size).chosen.seconds

    assumed = on_shared_cores(planned, 4.5)
    for probe_s in (1e-3, 2.5e-3):
        topology = on_shared_cores(planned, 4.5, probe_s)
        assert seconds(topology, PROBE_BYTES) == pytest.approx(probe_s, rel=0.01)
        slower = probe_s > seconds(assumed, PROBE_BYTES)
        assert (seconds(topology, 1 << 16) > seconds(assumed, 1 << 16)) == slower
    # A core for each: what was measured is not the cores' doing.
    own = on_shared_cores(planned, 1, 2.5e-3)
    assert own.alpha_s == planned.core().alpha_s


CORES = len(os.sched_getaffinity(0))
NUM_HOSTS = CORES + 1


@pytest.fixture(scope="module")
def slow_lab(lab_is_possible):
    """NICs that claim 10 Gb/s, and hosts that share cores."""
    with Lab(f"flat:{NUM_HOSTS},2", rate="200mbit,50mbit") as lab:
        yield lab


def in_lab(lab, *arguments):
    """The command on all hosts, which are not told how they are connected."""
    command = warmed([sys.executable, "-m", "dmlcomm", *arguments])
    options = {"capture_output": True, "text": True, "timeout": 120}
    return lab.run(command, "-e", "DMLCOMM_TOPOLOGY=auto", "-e", "COLUMNS=140", **options)


def test_the_cluster_is_found_and_measured(slow_lab):
    result = in_lab(slow_lab, "plan", "--measure")
    assert result.returncode == 0, result.stderr
    assert f"measured with {NUM_HOSTS / CORES:.3g} ranks per core" in result.stdout
    assert f"flat:{NUM_HOSTS},2: {NUM_HOSTS} hosts, 1 ranks each" in result.stdout
    assert re.search(r"\b1\W+eth1\W+10 Gb/s\W+[\d.]+ Mb/s, host\d", result.stdout)
    assert "9014 bytes of a frame" in result.stdout  # the MTU of the NICs


def test_doctor_shows_what_nics_carry_beside_what_drivers_say(slow_lab):
    result = in_lab(slow_lab, "doctor", "--measure", "--json")
    assert result.returncode == 0, result.stderr
    lines = [line.removeprefix("[0] ") for line in result.stdout.splitlines()]
    fast, slow = json.loads("\n".join(lines))["rails"]
    assert len(fast["hosts"]) == len(slow["hosts"]) == NUM_HOSTS
    for host in (*fast["hosts"], *slow["hosts"]):
        assert host["driver_bps"] == 10e9
        assert host["shown_bps"] < host["driver_bps"] / 10
    shown = [
        statistics.median(host["shown_bps"] for host in rail["hosts"]) for rail in (slow, fast)
    ]
    assert 0 < shown[0] < shown[1]
    assert statistics.median(host["round_trip_us"] for host in fast["hosts"]) > 0
    assert fast["message_s"] > 0


def test_a_cluster_that_is_another_one_is_an_error(slow_lab):
    result = in_lab(slow_lab, "plan", "--measure", "--topology", "bcube:2,2")
    assert result.returncode == 1
    assert f"the job is flat:{NUM_HOSTS},2 with 1 ranks on each host" in result.stderr


@pytest.mark.parametrize("command", ["plan", "doctor"])
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "RANK is not set: start the command on every host"),
        (ALONE, "all 1 ranks are on one host"),
        (ALONE | {"DMLCOMM_AUTOTUNE": "0"}, "unset it for --measure"),
    ],
)
def test_measuring_needs_a_job_of_several_hosts(command, environment, said):
    result = run_command(command, "--measure", **environment)
    assert result.returncode == 1
    assert said in " ".join(result.stderr.split())
