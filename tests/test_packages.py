"""Wheels: what their metadata demand, and the smoke test that they have to pass."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dmlcomm import _core
from dmlcomm.backends import versions

SCRIPTS = Path(__file__).parents[1] / "scripts"

METADATA = """\
Metadata-Version: 2.4
Name: dmlcomm
Version: 0.1.0
Requires-Dist: torch>=2.11
Requires-Dist: numpy

Requires-Dist: torch in the text
"""


@pytest.fixture
def contents(tmp_path):
    info = tmp_path / "dmlcomm-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    return tmp_path


def test_a_wheel_demands_the_torch_that_it_was_built_for(contents):
    runpy.run_path(str(SCRIPTS / "build_wheel.py"))["bind_to_torch"](contents, "2.15")
    (info,) = contents.iterdir()
    assert info.name == "dmlcomm-0.1.0+torch2.15.dist-info"
    expected = METADATA.replace("Version: 0.1.0", "Version: 0.1.0+torch2.15")
    expected = expected.replace("torch>=2.11", "torch>=2.11,==2.15.*")
    assert (info / "METADATA").read_text() == expected


def test_another_torch_than_that_of_the_build_is_refused():
    versions.check(torch.__version__)
    versions.check(f"{_core.TORCH_VERSION}.7+cpu")
    with pytest.raises(
        ImportError, match=rf"built for torch {_core.TORCH_VERSION}, and torch 2\.1 "
    ):
        versions.check("2.1.0")


def test_files_of_two_installations_are_refused(monkeypatch):
    monkeypatch.setattr(_core, "VERSION", "9.9")
    with pytest.raises(ImportError, match=r"compiled modules of version 9\.9: two installations"):
        versions.check(torch.__version__)


def test_commands_work_where_a_process_group_cannot():
    # A torch that finds no backend by its name, so that importing dmlcomm loads it.
    script = (
        "import importlib.metadata\n"
        "lies = {'torch': '2.12.0', 'dmlcomm': '9.9'}\n"
        "version = importlib.metadata.version\n"
        "importlib.metadata.version = lambda name: lies.get(name) or version(name)\n"
        "from dmlcomm.cli import app\n"
        "app(['plan', '--topology', 'flat:2,1', '--rate', '1gbit'], standalone_mode=False)\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('dmlcomm', store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ring" in done.stdout
    problem = "ImportError: dmlcomm's Python files are of version 9.9"
    assert done.stderr.splitlines()[-1].startswith(problem)


def test_torch_says_so_when_it_first_asks_for_the_backend():
    script = (
        "from dmlcomm import _core; _core.TORCH_VERSION = '2.10'\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('dmlcomm', store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: this dmlcomm was built for torch 2.10"
    )


def test_readme_script_runs_without_a_compiler():
    script = str(SCRIPTS / "smoke_test.py")
    done = subprocess.run([sys.executable, script, sys.executable], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the README's script ends with loss" in done.stdout
