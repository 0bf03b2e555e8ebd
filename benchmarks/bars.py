"""The bars: how fast dmlcomm must be beside what people use today, measured and judged in one run.

    python -m benchmarks.bars [--only NAME ...] [--folder bench_output]

Prints one line per bar and number of ranks, and writes bars.json and bars.md. ``docs/numbers.md``
says how each is measured.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from benchmarks import ddp_step, disturbance, memory, openmpi, report
from benchmarks.engine import OPENMPI, Measurement, Settings, session
from benchmarks.report import console, human_bytes
from benchmarks.reproduce_mlnet.scenarios import one_job
from benchmarks.reproduce_sip.__main__ import throughputs
from dmlcomm.lab.cpu import CpuMeter
from dmlcomm.simulate.run import Player

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB)
SIZES_PER_RANK = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
NUM_RANKS = (2, 4)
# Operations whose S is a whole output or input; a size "per rank" is one piece of it.
WHOLE_OF_PIECES = ("all_gather", "reduce_scatter")
MEMORY_LIMIT_MIB = 64
# What an allocator may keep after 10,000 operations without being a leak.
GROWTH_LIMIT_MIB = 2
# What else the machine does comes and goes within seconds: many short turns meet it alike.
ROUNDS = 4
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Limit:
    """At these sizes the peer must take at least ``factor`` times as long as dmlcomm."""

    peer: str
    factor: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """Bars that one sweep over sizes decides."""

    name: str
    limits: tuple[Limit, ...]
    operation: str = "all_reduce"
    transport: str = "auto"
    congestion: str | None = None


def _tcp_limits() -> tuple[Limit, ...]:
    return (Limit("gloo", 5.0, SIZES[:2]), Limit("gloo", 1.5, SIZES[2:]))


SWEEPS = (
    Sweep(
        "same host",
        (
            Limit("gloo", 10.0, SIZES[:2]),
            Limit("gloo", 6.0, SIZES[2:5]),
            Limit("gloo", 4.0, SIZES[5:]),
            Limit(OPENMPI, 1.0, SIZES[1:2]),
            Limit(OPENMPI, 1.5, SIZES[2:]),
        ),
    ),
    Sweep("tcp, bbr", _tcp_limits(), transport="tcp", congestion="bbr"),
    Sweep("tcp, cubic", _tcp_limits(), transport="tcp", congestion="cubic"),
    *(
        Sweep(name, (Limit("gloo", 3.0, SIZES_PER_RANK),), operation=name)
        for name in ("all_gather", "reduce_scatter", "broadcast", "all_to_all")
    ),
)


@dataclass(frozen=True)
class Verdict:
    """One bar for one number of ranks; ``detail`` holds what was measured at every size."""

    name: str
    num_ranks: int
    bar: str
    measured: str
    passed: bool
    detail: str


def run_sweep(sweep: Sweep, num_ranks: int, seconds: float, json_file: Path) -> Iterator[Verdict]:
    """Measures every size of the sweep once, and judges all its bars by that."""
    peers = tuple(dict.fromkeys(limit.peer for limit in sweep.limits))
    settings = Settings(
        num_ranks=num_ranks,
        backends=("dmlcomm", *peers),
        transport=sweep.transport,
        congestion=sweep.congestion,
        seconds=seconds,
        rounds=ROUNDS,
    )
    pieces = num_ranks if sweep.operation in WHOLE_OF_PIECES else 1
    by_size: dict[int, dict[str, Measurement]] = {}
    console.print(f"\n# {sweep.name}: {sweep.operation}, {num_ranks} ranks\n#{report.HEADER[1:]}")
    meter = CpuMeter()
    with session(settings) as running:
        for size in sorted({size for limit in sweep.limits for size in limit.sizes}):
            measurements = running.measure(sweep.operation, size * pieces)
            by_size[size] = {m.backend: m for m in measurements}
            report.append_json_lines(json_file, [m.as_dict() for m in measurements])
            for measurement in measurements:
                console.print(report.line(measurement))
    if remark := disturbance.remark(meter.use().stolen):
        console.print(f"[yellow]{remark}[/]")
    for limit in sweep.limits:
        yield judge(sweep, num_ranks, limit, by_size)


def judge(
    sweep: Sweep, num_ranks: int, limit: Limit, by_size: dict[int, dict[str, Measurement]]
) -> Verdict:
    span = human_bytes(limit.sizes[0])
    if len(limit.sizes) > 1:
        span += f" to {human_bytes(limit.sizes[-1])}"
    rows = [by_size[size] for size in limit.sizes]
    name = f"{sweep.name}, {span}"
    bar = f">= {limit.factor:g}x {limit.peer}"
    if any(limit.peer not in row for row in rows):
        return Verdict(name, num_ranks, bar, "not measured", False, f"no {limit.peer} here")
    ratios = [row[limit.peer].time_us / row["dmlcomm"].time_us for row in rows]
    right = not any(m.wrong for row in rows for m in row.values())
    listed = ", ".join(
        f"{human_bytes(size)}: {ratio:.2f}x"
        for size, ratio in zip(limit.sizes, ratios, strict=True)
    )
    return Verdict(
        name,
        num_ranks,
        bar,
        measured=f"{min(ratios):.2f}x" if right else "wrong results",
        passed=right and min(ratios) >= limit.factor,
        detail=listed,
    )


def judge_ddp() -> Iterator[Verdict]:
    """The demo model's step: what communication costs in the end."""
    result = ddp_step.measure(4, ["dmlcomm", "gloo"], blocks=8)
    ours, gloo = result["dmlcomm"], result["gloo"]
    detail = ", ".join(f"{name}: {ms:.1f} ms" for name, ms in result.items())
    yield Verdict(
        "DDP, communication not hidden",
        4,
        "<= 1/3 of gloo's",
        f"{ours / gloo:.2f}",
        ours <= gloo / 3,
        detail,
    )


def judge_kernels() -> Iterator[Verdict]:
    """The reduction kernels beside a loop compiled for this CPU; see kernels_bench.cc."""
    folder = ROOT / "build" / "bench"
    options = ["-DDMLCOMM_BUILD_BENCHMARKS=ON", "-DDMLCOMM_BUILD_TESTS=OFF"]
    _run(["cmake", "-S", str(ROOT), "-B", str(folder), *options])
    _run(["cmake", "--build", str(folder), "--target", "dmlcomm_kernels_bench"])
    (program,) = (path for path in folder.rglob("dmlcomm_kernels_bench") if path.is_file())
    fields = [line.split() for line in _run([str(program)]).splitlines() if line[:1] != "#"]
    ratio_of = {(row[0], row[1], row[2]): float(row[6]) for row in fields[1:]}
    for dtype, factor in (("f32", 1.0), ("bf16", 0.5)):
        ratios = {n: ratio_of[dtype, n, str(128 * KIB)] for n in ("2", "3", "4")}
        yield Verdict(
            f"kernel, {dtype} sum, 128 KiB",
            1,
            f">= {factor:g}x -O3 loop (f32)",
            f"{ratios['2']:.2f}x",
            ratios["2"] >= factor,
            ", ".join(f"{n} sources: {ratio:.2f}x" for n, ratio in ratios.items()),
        )


def judge_memory() -> Iterator[Verdict]:
    used = memory.measure(4, "dmlcomm", 10_000)
    needed, grown = used.needed_bytes / MIB, used.grown_bytes / MIB
    yield Verdict(
        "memory per rank",
        4,
        f"<= {MEMORY_LIMIT_MIB} MiB",
        f"{needed:.1f} MiB",
        needed <= MEMORY_LIMIT_MIB,
        "process group and first 5,000 operations",
    )
    yield Verdict(
        "memory growth in 10,000 operations",
        4,
        f"<= {GROWTH_LIMIT_MIB} MiB",
        f"{grown:.2f} MiB",
        grown <= GROWTH_LIMIT_MIB and used.grown_threads <= 0 and used.grown_descriptors <= 0,
        f"{used.grown_threads:+d} threads, {used.grown_descriptors:+d} descriptors",
    )


def plan_of_65536_hosts(*options: str) -> list[str]:
    """A command that fails where it needs more than 2 GB."""
    words = ("--topology", "bcube:16,4", "--rate", "10gbit", "--size", "100MB", *options)
    plan = (sys.executable, "-m", "dmlcomm", "plan", *words)
    return ["bash", "-c", 'ulimit -v 2000000 && exec "$@"', "bash", *plan]


def judge_planning() -> Iterator[Verdict]:
    """What planning and simulating a large network may take."""
    plan_s = _seconds(lambda: _run(plan_of_65536_hosts()))
    yield _within("dmlcomm plan, 65,536 hosts, in 2 GB", 30, plan_s)
    scenario = one_job(400, 1, "direct", "random")
    yield _within("MLNET, 800 workers, 400 servers", 60, _seconds(Player(scenario, seed=1).run))
    yield _within("SiP, 1,024 servers, all tapers", 600, _seconds(lambda: list(throughputs())))


def _within(name: str, bar_s: float, seconds: float) -> Verdict:
    return Verdict(name, 1, f"<= {bar_s:g} s", f"{seconds:.1f} s", seconds <= bar_s, "one core")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


SINGLE_BARS: dict[str, Callable[[], Iterator[Verdict]]] = {
    "ddp": judge_ddp,
    "kernels": judge_kernels,
    "memory": judge_memory,
    "planning": judge_planning,
}
NAMES = [sweep.name for sweep in SWEEPS] + list(SINGLE_BARS)


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def measure_all(names: list[str], seconds: float, json_file: Path) -> Iterator[Verdict]:
    for sweep in SWEEPS:
        if sweep.name not in names:
            continue
        if sweep.congestion and os.geteuid() != 0:
            console.print(f"[yellow]{sweep.name} is left out: changing it needs root[/]")
            continue
        for num_ranks in NUM_RANKS:
            yield from run_sweep(sweep, num_ranks, seconds, json_file)
    for name, judge_single in SINGLE_BARS.items():
        if name in names:
            yield from judge_single()


def table(verdicts: list[Verdict]) -> Table:
    result = Table(title="Bars: the worst size counts", title_justify="left")
    for column in ("case", "ranks", "bar", "measured", ""):
        result.add_column(column, no_wrap=True)
    for v in verdicts:
        mark = "[green]pass[/]" if v.passed else "[red]FAIL[/]"
        result.add_row(v.name, str(v.num_ranks), v.bar, v.measured, mark)
    return result


def markdown(verdicts: list[Verdict]) -> str:
    lines = ["| case | ranks | bar | measured | | per size |", "|---|---|---|---|---|---|"]
    for v in verdicts:
        mark = "pass" if v.passed else "FAIL"
        lines.append(f"| {v.name} | {v.num_ranks} | {v.bar} | {v.measured} | {mark} | {v.detail} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        metavar="NAME",
        help=f"one of: {'; '.join(NAMES)}",
    )
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a turn")
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    options = parser.parse_args()
    if reason := openmpi.why_not():
        console.print(f"[yellow]openmpi cannot be measured: {reason}[/]")

    options.folder.mkdir(parents=True, exist_ok=True)
    json_file = options.folder / "bars.json"
    json_file.unlink(missing_ok=True)
    report.append_json_lines(json_file, [report.environment()])
    verdicts = list(measure_all(options.only, options.seconds, json_file))
    report.append_json_lines(json_file, [asdict(verdict) for verdict in verdicts])
    (options.folder / "bars.md").write_text(markdown(verdicts))
    console.print()
    console.print(table(verdicts))
    if not all(verdict.passed for verdict in verdicts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
