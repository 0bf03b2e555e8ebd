"""The OpenMPI peer: a small C++ program, compiled when first needed."""

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.operations import Case

SOURCE = Path(__file__).with_name("collectives.cc")
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
DTYPES = ("float32", "float64", "int32", "int64")
RUN_TIMEOUT_S = 300


def why_not() -> str | None:
    """Why OpenMPI cannot be measured here, or None."""
    for tool in ("mpirun", "mpicxx"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: apt-get install libopenmpi-dev openmpi-bin)"
    return None


@dataclass
class OpenMpi:
    """Runs cases with ``mpirun``; ``transport`` "tcp" forbids shared memory, as for dmlcomm."""

    num_ranks: int
    transport: str = "auto"
    _folder: tempfile.TemporaryDirectory = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="dmlcomm-openmpi-")
    )

    def __post_init__(self) -> None:
        self._program = str(Path(self._folder.name) / "collectives")
        _run(["mpicxx", "-std=c++20", "-O3", str(SOURCE), "-o", self._program])

    def supports(self, case: Case) -> bool:
        return case.operation in OPERATIONS and _dtype_name(case) in DTYPES

    def measure(self, case: Case, seconds: float, iterations: int) -> tuple[list[float], int]:
        """Seconds of each iteration of the slowest rank, and wrong elements over all ranks.

        An operation that MPI offers in place and with separate buffers is measured both ways; the
        faster way counts.
        """
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(self.num_ranks)]
        if self.transport == "tcp":
            command += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
            command += ["--mca", "btl_tcp_if_include", "lo"]
        command += [self._program, case.operation, str(case.count), _dtype_name(case)]
        command += [str(seconds), "5", str(iterations)]
        variants = [json.loads(line) for line in _run(command).splitlines() if line[:1] == "{"]
        best = min(variants, key=lambda v: sorted(v["seconds"])[len(v["seconds"]) // 2])
        return best["seconds"], sum(v["wrong"] for v in variants)


def _dtype_name(case: Case) -> str:
    return str(case.dtype).removeprefix("torch.")


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout
