"""What a job loads (only what its settings need), and what its ranks ask of the store and open."""

import os
import subprocess
import sys

import pytest

from benchmarks.operations import OPERATIONS
from benchmarks.start_ranks import SIZES, measure, measure_in_lab
from dmlcomm.lab import Lab

# What a job of one network without servers has no use for.
HEAVY = (
    "dmlcomm.lab",
    "dmlcomm.planning",
    "dmlcomm.ps",
    "grpc",
    "networkx",
    "rich",
    "click",
    "yaml",
)

JOB = """
import sys, tempfile, torch.distributed as dist
before = set(sys.modules)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("dmlcomm", init_method=f"file://{folder}/store", rank=0, world_size=1)
    dist.destroy_process_group()
print(*(set(sys.modules) - before))
"""


def modules_after(program, **environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith("DMLCOMM_")}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=own | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(result.stdout.split())


def heavy(modules):
    return {name for name in HEAVY for module in modules if f"{module}.".startswith(f"{name}.")}


@pytest.mark.parametrize("topology", ["auto", "bcube:3,2@10gbit"])
def test_process_group_loads_what_it_uses(topology):
    modules = modules_after(JOB, DMLCOMM_TOPOLOGY=topology)
    assert "dmlcomm._c10d" in modules
    assert heavy(modules) == set()


def test_process_group_loads_yaml_for_the_files_that_it_is_given(tmp_path):
    topology, plan = tmp_path / "topology.yaml", tmp_path / "plan.yaml"
    topology.write_text("topology: flat")
    plan.write_text("plan: 1\nhosts: 1\nranks_per_host: 1\ngrid: []\nalgorithms: {}\n")
    assert heavy(modules_after(JOB, DMLCOMM_TOPOLOGY=f"file:{topology}")) == {"yaml"}
    assert heavy(modules_after(JOB, DMLCOMM_PLAN=str(plan))) == {"yaml", "dmlcomm.planning"}


@pytest.mark.parametrize("module", ["dmlcomm.errors", "dmlcomm.lab", "dmlcomm.ps.Client"])
def test_torch_is_not_loaded_for(module):
    program = f"import sys, dmlcomm.errors, dmlcomm.lab, dmlcomm.ps; {module}; print(*sys.modules)"
    assert "torch.distributed" not in modules_after(program)


def counted_calls(starts):
    """Of the store, by rank; how often a rank looks depends on how late the others are."""
    # The last one looks at once.
    assert all(start.calls["check"] > 0 for start in starts)
    return {start.calls.total() - start.calls["check"] for start in starts}


def possible_calls(num_exchanges):
    """Publish, count, read; and of each exchange one rank tells the others that it is complete."""
    fewest = 3 * num_exchanges
    return set(range(fewest, fewest + num_exchanges + 1))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_calls_of_the_store_do_not_depend_on_the_number_of_ranks(transport):
    # One exchange of facts, one of hosts and over TCP one of ports.
    expected = possible_calls(2 if transport == "auto" else 3)
    for num_ranks in (4, 16):
        starts = measure("dmlcomm", num_ranks, {"DMLCOMM_TRANSPORT": transport})
        assert counted_calls(starts) <= expected


@pytest.mark.parametrize(("spec", "num_hosts"), [("flat:4,2", 4), ("bcube:3,2", 9)])
def test_every_collective_of_many_hosts(lab_is_possible, spec, num_hosts):
    with Lab(spec) as lab:
        starts = measure_in_lab("dmlcomm", lab)
    assert len(starts) == num_hosts
    assert counted_calls(starts) <= possible_calls(3)
    for start in starts:
        assert start.wrong == 0
        assert len(start.collectives) == len(OPERATIONS) * len(SIZES)
        # After an all_to_all a rank is connected to all others.
        assert start.open_files[1] >= start.open_files[0] + num_hosts - 1
