"""The test class: torch's DistributedTest with dmlcomm in the place of its CPU backend, gloo.

The suite asks `BACKEND == "gloo"` where it means "the backend that does everything on the CPU". Its
source is loaded with that name replaced, so that every such question is answered for dmlcomm, and
dmlcomm is what `init_process_group` and `new_group` are called with. Nothing else is changed.
"""

import importlib.util
import multiprocessing.context
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.testing._internal import common_distributed

import dmlcomm

_SUITE = "torch.testing._internal.distributed.distributed_test"

_REPLACEMENTS = [
    (r'"gloo"', '"dmlcomm"'),
    # Lists of backends whose profiler ranges are checked. Elsewhere Backend.GLOO is a second group
    # that a test uses for its own purposes.
    (r"^    dist\.Backend\.GLOO,$", '    "dmlcomm",'),
    # What only one other backend does on the CPU, this one does too.
    (r'BACKEND != "mpi", "Only MPI supports', 'False, "Only MPI supports'),
    # The words of gloo's message.
    (r'" \(Timed out\|closed\|timeout\) "', '"timed out"'),
]


def _load_suite() -> types.ModuleType:
    """The suite as a module under its own name, with the backend's name replaced."""
    for feature in common_distributed.DistTestCases.backend_feature.values():
        if "gloo" in feature:
            feature.add("dmlcomm")
    common_distributed.DistTestCases.backend_feature["plugin"].add("dmlcomm")
    spec = importlib.util.find_spec(_SUITE)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    for pattern, replacement in _REPLACEMENTS:
        source, count = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        assert count > 0, f"the suite has changed: no {pattern} in it"
    module = types.ModuleType(_SUITE)
    module.__file__ = spec.origin
    sys.modules[_SUITE] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module


os.environ.setdefault("BACKEND", "dmlcomm")
os.environ.setdefault("WORLD_SIZE", "4")
_suite = _load_suite()
# torch's own refuses every backend but gloo.
dist.monitored_barrier = dmlcomm.monitored_barrier


class _Process(multiprocessing.context.ForkServerProcess):
    """The fork server has torch loaded, but the environment of its own start."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.update(self._environment)
        _suite.INIT_METHOD = os.environ["INIT_METHOD"]  # what the suite reads when it is loaded
        super().run()


class TestDmlcomm(_suite.TestDistBackend, _suite.DistributedTest._DistTestBase):  # type: ignore
    """Every test of the suite, each on WORLD_SIZE fresh processes."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(_Process)
