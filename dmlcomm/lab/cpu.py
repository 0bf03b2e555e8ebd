"""The use of this machine's cores over a time."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CpuUse:
    """Shares of all cores' time, 0 to 1.

    Attributes:
        busy: in use, also by others.
        stolen: withheld from this virtual machine when it wanted to run.
    """

    busy: float
    stolen: float


class CpuMeter:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._begin = _ticks()

    def use(self) -> CpuUse:
        ticks = [now - then for now, then in zip(_ticks(), self._begin, strict=True)]
        total = max(sum(ticks), 1)
        idle, waiting, stolen = ticks[3], ticks[4], ticks[7]
        return CpuUse(1 - (idle + waiting) / total, stolen / total)


def _ticks() -> list[int]:
    """Since the machine started: user nice system idle iowait irq softirq steal."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return [int(field) for field in fields]
