"""The tests leave the machine as they found it."""

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from dmlcomm.lab import Lab, LabError
from helpers.warm_python import script_of, warmed

# Labs look at all network namespaces of the system, and the others use all cores or bound times:
# these run one after the other (`make test-python`).
ALONE = (
    "test_switch",
    *("test_lab", "test_multi_nic", "test_one_subnet", "test_ps_several_nics", "test_reproduce"),
    *("test_examples", "test_against_gloo", "test_failures", "test_ps_failures", "test_relays"),
    "test_unkind",
    "test_soak",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.stem
        if name.startswith(ALONE) or name.endswith(("_benchmark", "_benchmarks")):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(autouse=True, scope="session")
def _nothing_left_in_shared_memory() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    left = {name for name in set(os.listdir("/dev/shm")) - before if "dmlcomm" in name}
    assert left == set()


@pytest.fixture(scope="session")
def lab_is_possible() -> None:
    """Skips a test where this system allows no lab, with the reason."""
    try:
        with Lab("flat:1,1", rate="100mbit"):
            pass
    except LabError as error:
        pytest.skip(f"no lab can be built here: {error}")


@pytest.fixture(scope="session")
def loss_is_possible(lab_is_possible) -> None:
    """Skips a test where this kernel has no means to lose packets."""
    try:
        with Lab("flat:1,1", loss="1%"):
            pass
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture
def run_python(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``run_python("-m", module, ...)`` or ``(file, ...)``: as a command, but in this process.

    The Python programs that it runs in labs have torch loaded already.
    """
    run = Lab._run
    monkeypatch.setattr(Lab, "_run", lambda lab, command, more: run(lab, warmed(command), more))

    def start(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        exec(script_of(arguments))

    return start
