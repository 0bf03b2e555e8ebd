"""Tables for people and JSON lines for tools."""

import json
import os
import platform
import re
import time
from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from benchmarks.engine import Measurement
from dmlcomm import _shell
from dmlcomm.doctor import version_of

console = _shell.console(soft_wrap=True, highlight=False)

HEADER = (
    f"{'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'time':>10} {'algbw':>8} {'busbw':>8}"
    f" {'#wrong':>7}  backend"
)
UNITS = f"{'(B)':>12} {'(elements)':>12} {'':>16} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}"


def line(m: Measurement) -> str:
    """A line in the columns of nccl-tests."""
    wrong = "N/A" if m.wrong is None else str(m.wrong)
    return (
        f"{m.size:>12} {m.count:>12} {m.type:>9} {m.redop:>6} {m.time_us:>10.2f} {m.algbw:>8.2f}"
        f" {m.busbw:>8.2f} {wrong:>7}  {m.backend}"
    )


def ratios(measurements: Iterable[Measurement], reference: str) -> Table:
    """One row per case: every backend's time, the reference's lead over each, and the bound."""
    rows: dict[tuple, dict[str, Measurement]] = {}
    for m in measurements:
        rows.setdefault((m.operation, m.num_ranks, m.size), {})[m.backend] = m
    backends = list(dict.fromkeys(b for row in rows.values() for b in row))
    others = [b for b in backends if b != reference]

    table = Table(title="Side by side: times in us", title_justify="left")
    for column in ("operation", "ranks", "size", *backends):
        table.add_column(column, justify="left" if column == "operation" else "right", no_wrap=True)
    for other in others:
        table.add_column(f"{other} / {reference}", justify="right")
    table.add_column("bound", justify="right")
    table.add_column(f"bound / {reference}", justify="right")
    for (operation, num_ranks, size), row in rows.items():
        cells = [operation, str(num_ranks), human_bytes(size)]
        cells += [f"{row[b].time_us:.1f}" if b in row else "-" for b in backends]
        cells += [_ratio(row, other, reference) for other in others]
        best = row.get(reference) or next(iter(row.values()))
        share = f"{best.bound_us / best.time_us:.0%}" if reference in row else "-"
        table.add_row(*cells, f"{best.bound_us:.1f}", share)
    return table


def _ratio(row: dict[str, Measurement], other: str, reference: str) -> str:
    if other not in row or reference not in row:
        return "-"
    return f"{row[other].time_us / row[reference].time_us:.2f}x"


def human_bytes(count: int) -> str:
    """1024 -> "1 KiB"; the largest unit that divides well."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}" if count % unit == 0 else f"{count / unit:.2f} {name}"
    return f"{count} B"


def parse_bytes(text: str) -> int:
    """ "64K", "1M", "16MiB" or "4096" -> bytes, as nccl-tests reads them."""
    digits = text.rstrip("KMGiBkmgb ")
    suffix = text[len(digits) :].strip().upper().removesuffix("B").removesuffix("I")
    return int(digits) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[suffix]


def environment() -> dict:
    """The first line of a JSON file: on what it was measured."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "environment": {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cpu": models[0] if models else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "torch": version_of("torch"),
            "dmlcomm": version_of("dmlcomm"),
        }
    }


def append_json_lines(path: Path, records: Iterable[dict]) -> None:
    with path.open("a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
