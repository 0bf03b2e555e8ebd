"""The engine: measures one case with every backend, in turns, and prices it against the bounds."""

import contextlib
import os
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import bounds, openmpi
from benchmarks.operations import OPERATIONS, Case
from benchmarks.ranks import MEMORY_COPY, Ranks

OPENMPI = "openmpi"
MIN_ITERATIONS = 5
CONGESTION_FILE = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True)
class Settings:
    """How to measure. Each backend gets ``rounds`` turns per case; a turn has as many iterations as
    fit in ``seconds``, within MIN_ITERATIONS and ``iterations``."""

    num_ranks: int = 2
    backends: tuple[str, ...] = ("dmlcomm", "gloo", OPENMPI)
    dtype: torch.dtype = torch.float32
    transport: str = "auto"
    congestion: str | None = None
    iterations: int = 100
    warmup: int = 3
    rounds: int = 2
    seconds: float = 0.5
    check: bool = True


@dataclass(frozen=True)
class Measurement:
    """One line of the result: one case on one backend. Times in microseconds, rates in GB/s."""

    operation: str
    backend: str
    num_ranks: int
    transport: str
    congestion: str
    size: int
    count: int
    type: str
    redop: str
    iterations: int
    time_us: float
    least_us: float
    greatest_us: float
    algbw: float
    busbw: float
    wrong: int | None
    bound_us: float

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass
class Session:
    """Ranks, peers and bounds of one setting. Use through ``session``."""

    settings: Settings
    ranks: Ranks
    mpi: openmpi.OpenMpi | None
    stream_rate: float | None
    _seed: int = 0

    def measure(self, operation: str, size_bytes: int) -> list[Measurement]:
        """One case with every backend; the first entry of the settings first."""
        settings = self.settings
        case = Case(operation, size_bytes, settings.dtype, settings.num_ranks)
        backends = [b for b in settings.backends if b != OPENMPI]
        if settings.transport == "auto":
            backends.append(MEMORY_COPY)
        if self.mpi and self.mpi.supports(case):
            backends.append(OPENMPI)
        seconds: dict[str, list[float]] = {backend: [] for backend in backends}
        wrong = dict.fromkeys(backends, 0)
        for _ in range(settings.rounds):
            for backend in backends:
                turn, turn_wrong = self._turn(backend, case)
                seconds[backend] += turn
                wrong[backend] += turn_wrong
        bound = self._bound(case, seconds.pop(MEMORY_COPY, None))
        return [self._result(case, b, seconds[b], wrong[b], bound) for b in seconds]

    def _turn(self, backend: str, case: Case) -> tuple[list[float], int]:
        settings = self.settings
        if backend == OPENMPI:
            return self.mpi.measure(case, settings.seconds, settings.iterations)
        estimate = self.ranks.measure(backend, case, 1, 2)[-1]
        fitting = int(settings.seconds / max(estimate, 1e-9))
        iterations = min(max(fitting, MIN_ITERATIONS), settings.iterations)
        seconds = self.ranks.measure(backend, case, min(settings.warmup, iterations), iterations)
        self._seed += 1
        wrong = self.ranks.check(backend, case, self._seed) if settings.check else 0
        return seconds, wrong

    def _bound(self, case: Case, copy_seconds: list[float] | None) -> float:
        """Seconds that no implementation of this transport is expected to beat."""
        if copy_seconds is not None:
            return statistics.median(copy_seconds)
        factor = OPERATIONS[case.operation].wire_factor(case.num_ranks)
        return case.count * case.dtype.itemsize * factor / self.stream_rate

    def _result(
        self, case: Case, backend: str, seconds: list[float], wrong: int, bound_s: float
    ) -> Measurement:
        operation = OPERATIONS[case.operation]
        median_s = statistics.median(seconds)
        size = case.count * case.dtype.itemsize
        algbw = size / median_s / 1e9
        return Measurement(
            operation=case.operation,
            backend=backend,
            num_ranks=case.num_ranks,
            transport=self.settings.transport,
            congestion=CONGESTION_FILE.read_text().strip(),
            size=size,
            count=case.count,
            type=str(case.dtype).removeprefix("torch."),
            redop=operation.redop,
            iterations=len(seconds),
            time_us=median_s * 1e6,
            least_us=min(seconds) * 1e6,
            greatest_us=max(seconds) * 1e6,
            algbw=algbw,
            busbw=algbw * operation.wire_factor(case.num_ranks),
            wrong=wrong if self.settings.check else None,
            bound_us=bound_s * 1e6,
        )


@contextlib.contextmanager
def session(settings: Settings) -> Iterator[Session]:
    """Starts the ranks under the settings' transport and congestion control."""
    use_mpi = OPENMPI in settings.backends and openmpi.why_not() is None
    mpi = openmpi.OpenMpi(settings.num_ranks, settings.transport) if use_mpi else None
    torch_backends = [b for b in settings.backends if b != OPENMPI] + [MEMORY_COPY]
    environment = {"DMLCOMM_TRANSPORT": settings.transport}
    with system_congestion(settings.congestion):
        over_tcp = settings.transport != "auto"
        stream_rate = bounds.tcp_stream_bytes_per_s() if over_tcp else None
        with Ranks(settings.num_ranks, torch_backends, environment) as ranks:
            yield Session(settings, ranks, mpi, stream_rate)


@contextlib.contextmanager
def system_congestion(name: str | None) -> Iterator[None]:
    """Makes ``name`` the system's TCP congestion control, and restores the old one afterwards."""
    before = CONGESTION_FILE.read_text().strip()
    if name is None or name == before:
        yield
        return
    if os.geteuid() != 0:
        raise PermissionError(
            f"--congestion {name} changes the system's TCP congestion control ({before}); "
            "that needs root"
        )
    CONGESTION_FILE.write_text(name)
    try:
        yield
    finally:
        CONGESTION_FILE.write_text(before)


def sizes(first: int, last: int, factor: int) -> Iterable[int]:
    """first, first x factor, ... up to last."""
    while first <= last:
        yield first
        first *= factor
