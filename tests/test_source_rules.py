"""The rules of the source tree hold, and scripts/check_layers.py sees what it should."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def rules():
    return runpy.run_path(str(ROOT / "scripts" / "check_layers.py"))


def test_tree_keeps_the_rules(rules):
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: the list of source files comes from git")
    assert [str(offence) for offence in rules["offences"]()] == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("csrc/schedule/a.cc", '#include "engine/communicator.h"'),
        ("csrc/bindings/a.cc", "#include <torch/torch.h>"),
        ("csrc/engine/a.cc", "#include <pybind11/pybind11.h>"),
        ("csrc/base/a.cc", '#include "base/no_such_file.h"'),
    ],
)
def test_include_that_breaks_a_rule_is_found(rules, path, line):
    assert len(list(rules["check_includes"](path, [line]))) == 1


def test_include_from_below_is_allowed(rules):
    lines = ["#include <vector>", '#include "base/status.h"', '#include "schedule/schedule.h"']
    assert list(rules["check_includes"]("csrc/engine/a.cc", lines)) == []


def test_environment_is_read_in_one_place(rules):
    check = rules["check_environment"]
    assert len(list(check("csrc/engine/a.cc", ['  getenv("HOME");', "// not getenv"]))) == 1
    assert list(check("csrc/base/config.cc", ['  getenv("DMLCOMM_LOG_LEVEL");'])) == []
    assert len(list(check("dmlcomm/a.py", ['os.environ["HOME"]', "# not os.environ"]))) == 1


def test_long_cpp_function_is_found(rules):
    body = "  call();\n" * 70
    text = f"namespace a {{\nclass B {{\n  int c = 3;\n}};\nint f(int x) {{\n{body}}}\n}}\n"
    assert [o.line for o in rules["check_functions"]("csrc/base/a.cc", text)] == [5]
    assert list(rules["check_functions"]("csrc/base/a.cc", text.replace(body, ""))) == []


def test_long_python_function_is_found(rules):
    text = "def f():\n" + "    pass\n" * 70
    assert [o.line for o in rules["check_functions"]("a.py", text)] == [1]


def test_every_variable_is_documented_and_no_other():
    variable = re.compile(r"\bDMLCOMM_[A-Z_]+[A-Z]\b")
    headers = ("config.h", "proxy_setting.h")
    text = "".join((ROOT / "csrc/base" / name).read_text() for name in headers)
    declared = re.findall(r"// (DMLCOMM_\w+):", text)
    read = variable.findall((ROOT / "csrc/base/config.cc").read_text())
    headings = re.findall(r"### `(DMLCOMM_\w+)`", (ROOT / "docs/configuration.md").read_text())
    macros = {"DMLCOMM_RETURN_IF_ERROR", "DMLCOMM_CHECK"}
    assert len(declared) >= 10
    assert sorted(declared) == sorted(headings)
    files = {f"{name}_FILE" for name in declared}  # of secrets, described with them
    assert set(declared) == set(read) - macros - files


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("dmlcomm/backends/a.py", "from dmlcomm.lab import Lab"),
        ("dmlcomm/network/a.py", "def f():\n    import dmlcomm.ps.client"),
        ("dmlcomm/ps/a.py", "from dmlcomm import backends"),
        ("dmlcomm/ps/server/a.py", "from dmlcomm.ps.worker.client import Client"),
        ("dmlcomm/ps/worker/a.py", "from dmlcomm.ps import Server"),
        ("dmlcomm/bml/a.py", "if TYPE_CHECKING:\n    from dmlcomm.network.facts import Facts"),
        ("dmlcomm/errors/a.py", 'HOME = {"app": "dmlcomm.lab.commands:app"}'),
        ("dmlcomm/new/a.py", ""),
    ],
)
def test_import_of_a_layer_that_is_not_below_is_found(rules, path, text):
    assert len(list(rules["check_layer_imports"](path, text))) == 1


def test_import_of_a_layer_below_is_allowed(rules):
    text = "import json\nfrom dmlcomm import _core\nfrom dmlcomm.bml.grid import line\nN = 1"
    assert list(rules["check_layer_imports"]("dmlcomm/network/a.py", text)) == []


def test_layers_stand_above_those_that_they_import(rules):
    seen = set()
    for layer, below in rules["MAY_IMPORT"].items():
        assert set(below) - {layer} <= seen, layer
        seen.add(layer)


def test_files_that_import_each_other_are_found(rules):
    text_of = {
        "dmlcomm/ps/a.py": "from dmlcomm.ps.b import B",
        "dmlcomm/ps/b.py": "def f():\n    from dmlcomm.ps import c",
        "dmlcomm/ps/c.py": "import dmlcomm.ps.a",
        "dmlcomm/ps/d.py": "from dmlcomm.ps.a import A",
    }
    (offence,) = rules["check_circles"](text_of)
    assert "ps.a -> ps.b -> ps.c -> ps.a" in str(offence)
    text_of["dmlcomm/ps/c.py"] = ""
    assert list(rules["check_circles"](text_of)) == []


def test_file_that_no_page_of_the_architecture_names_is_found(rules):
    pages = "A `LaneSet` has lanes (`transport/lane.h`); `*_bml` has levels, and `Link::attach` ..."
    named = ["csrc/transport/lane_set.cc", "csrc/transport/lane.h", "csrc/schedule/a_bml.cc"]
    others = ["csrc/transport/link.cc", "csrc/tests/mesh_test.cc", "dmlcomm/ps/__init__.py"]
    paths = [*named, *others, "csrc/transport/mesh.h", "csrc/transport/mesh.cc"]
    offences = list(rules["check_named"](paths, pages))
    assert [offence.path for offence in offences] == ["csrc/transport/mesh.h"]


def test_import_that_a_folder_must_do_without_is_found(rules):
    check = rules["check_imports"]
    assert len(list(check("dmlcomm/lab/lab.py", ["import torch", "from torch import nn"]))) == 2
    assert len(list(check("dmlcomm/lab/lab.py", ["from pyroute2 import IPRoute"]))) == 1
    assert list(check("dmlcomm/lab/network.py", ["from pyroute2 import IPRoute"])) == []
    assert list(check("dmlcomm/network/nic.py", ["import torch"])) == []
