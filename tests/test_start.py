"""What a process loads: a job only what its settings need, and no torch where it can be without."""

import os
import subprocess
import sys

import pytest

# What a job of one network without servers has no use for.
HEAVY = (
    "dmlcomm.lab",
    "dmlcomm.planning",
    "dmlcomm.ps",
    "grpc",
    "networkx",
    "rich",
    "typer",
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
