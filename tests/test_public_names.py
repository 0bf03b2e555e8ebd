"""What a user sees: names, help and errors of the package."""

import inspect
import pydoc
import re
import subprocess
import sys

import pytest
import torch.distributed as dist

import dmlcomm
import dmlcomm.errors
import dmlcomm.hooks
import dmlcomm.lab
import dmlcomm.prio
import dmlcomm.ps
import dmlcomm.sim
from dmlcomm.errors import base, comm

PUBLIC = [
    *(dmlcomm, dmlcomm.errors, dmlcomm.hooks, dmlcomm.lab),
    *(dmlcomm.prio, dmlcomm.ps, dmlcomm.sim),
]


def functions_of(module):
    """(name, function, text that describes it) of functions, classes and their public methods."""
    for name in module.__all__:
        found = getattr(module, name)
        if not inspect.isclass(found):
            yield name, found, found.__doc__
        elif not issubclass(found, Exception):
            yield name, found, found.__doc__
            for key, method in vars(found).items():
                if inspect.isfunction(method) and not key.startswith("_"):
                    yield f"{name}.{key}", method, method.__doc__


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_all_is_what_is_public(module):
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = module.nothing_of_this_name


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_help_shows_what_may_be_called_and_nothing_else(module):
    text = pydoc.plain(pydoc.render_doc(module))
    for section, is_kind in (("FUNCTIONS", inspect.isfunction), ("DATA", lambda found: False)):
        body = text.partition(f"\n{section}\n")[2].partition("\n\n\n")[0]
        body = re.split(r"\n[A-Z]", body)[0]
        shown = set(re.findall(r"^    (\w+)(?:\(| =)", body, re.MULTILINE)) - {"__all__"}
        assert shown == {name for name in module.__all__ if is_kind(getattr(module, name))}
    hidden = ["__getattr__", "__dir__", "register_at_import"]
    hidden += ["terminal", "environment"] if module is dmlcomm else []
    assert not [name for name in hidden if re.search(rf"^ +{name}\b", text, re.MULTILINE)]


def test_parts_of_the_package_need_no_import_of_their_own():
    names = "dmlcomm.prio.ticket_fsdp, dmlcomm.ps.Client, dmlcomm.lab.Lab, dmlcomm.errors.PsError"
    names += ", dmlcomm.sim.Simulation, dmlcomm.hooks.quantize_hook"
    subprocess.run([sys.executable, "-c", f"import dmlcomm; print({names})"], check=True)


def test_help_says_where_the_rest_is():
    assert all(name in dmlcomm.__doc__ for name in ("dmlcomm.errors", "dmlcomm.lab", "dmlcomm.ps"))
    assert all(name in dmlcomm.__doc__ for name in dmlcomm.__all__ if name.islower())


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_parameter_is_described(module):
    for name, function, text in functions_of(module):
        assert text, name
        names = set(inspect.signature(function).parameters) - {"self", "args", "kwargs", "_"}
        assert [key for key in sorted(names) if not re.search(rf"\b{key}\b", text)] == [], name


def test_errors_are_a_tree_below_one_class():
    classes = {
        name: found
        for module in (base, comm)
        for name, found in vars(module).items()
        if inspect.isclass(found) and issubclass(found, dmlcomm.Error)
    }
    assert sorted(classes) == sorted(dmlcomm.errors.__all__)
    for name, found in classes.items():
        assert getattr(dmlcomm, name) is getattr(dmlcomm.errors, name) is found
        # The parent stands above it, one step to the left.
        lines = dmlcomm.errors.__doc__.splitlines()
        (row,) = (i for i, line in enumerate(lines) if re.search(rf"── {name} ", line))
        parent = found.__bases__[0].__name__
        above = [line for line in lines[:row] if re.search(rf"(^ *|── ){parent}\b", line)]
        assert above, name
    assert dmlcomm.lab.LabError is dmlcomm.LabError


def test_errors_are_what_torch_and_python_know_them_as():
    assert issubclass(dmlcomm.CommError, dist.DistBackendError)
    for name in ("PeerLostError", "CollectiveMismatchError", "CommTimeoutError", "AbortedError"):
        assert issubclass(getattr(dmlcomm, name), dmlcomm.CommError)
    assert issubclass(dmlcomm.PsError, RuntimeError)
    assert issubclass(dmlcomm.PsTimeoutError, TimeoutError)
    assert dmlcomm.PeerLostError("peer_lost: rank 3 is gone").code == "peer_lost"
    assert dmlcomm.PsTimeoutError("late").code == "timeout"
    assert dmlcomm.LabError("no namespaces").code == "lab"
