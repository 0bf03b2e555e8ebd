"""The tests leave the machine as they found it."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dmlcomm.lab import Lab, LabError
from helpers.warm_python import script_of, warmed


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


@pytest.fixture(scope="session")
def torch_modules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the modules that helpers/torch_modules.cc makes: fake_cuda, completion_hooks.

    They are compiled once if all tests that use them are in the xdist_group "torch_modules".
    """
    from torch.utils import cpp_extension

    name = "torch_modules"
    folder = tmp_path_factory.mktemp(name)
    cpp_extension.load(
        name,
        [str(Path(__file__).parent / "helpers" / f"{name}.cc")],
        extra_cflags=["-O0", "-std=c++20"],
        extra_ldflags=["-Wl,-soname,libcuda.so.1"],  # see fake_cuda.cc
        build_directory=str(folder),
        is_python_module=False,
    )
    for module in ("fake_cuda", "completion_hooks"):
        (folder / f"{module}.so").symlink_to(f"{name}.so")
    return str(folder)


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
