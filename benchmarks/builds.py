"""Two builds of dmlcomm side by side, in turns of a tenth of a second: has a change made it slower?

    python -m benchmarks.builds OTHER_CHECKOUT [--ranks 2,4] [--transport tcp]
    python -m benchmarks.builds . --transport ucx --other-transport tcp

OTHER_CHECKOUT is a folder with another commit, built as this one is (`make setup`); or this one,
to see two transports side by side. What else the machine does meets both alike, so a few per cent
are seen where medians of whole runs differ by a quarter.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import list_of
from benchmarks.bars import NUM_RANKS, SIZES
from benchmarks.engine import MIN_ITERATIONS, system_congestion
from benchmarks.report import console, human_bytes, parse_bytes

TURN_S = 0.1
TRANSPORTS = ("auto", "shm", "tcp", "ucx")
THIS = Path(__file__).resolve().parents[1]


class Build:
    """Ranks that have the dmlcomm of ``checkout``. Without a request they sleep."""

    def __init__(self, checkout: Path, num_ranks: int, transport: str, store: Path):
        python = checkout / ".venv/bin/python"
        command = [python if python.exists() else sys.executable, "-P"]
        command.append(Path(__file__).with_name("builds_rank.py"))
        environment = {"PYTHONPATH": str(checkout), "DMLCOMM_TRANSPORT": transport}
        self._name = str(checkout)
        self._ranks = [
            subprocess.Popen(
                [*command, str(rank), str(num_ranks), store, checkout],
                cwd=checkout,
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_ranks)
        ]

    def answers(self) -> list[str]:
        """A line of every rank."""
        lines = [rank.stdout.readline() for rank in self._ranks]
        if not all(lines):
            raise RuntimeError(f"a rank of {self._name} ended; its error is above")
        return lines

    def time_us(self, num_bytes: int, iterations: int) -> float:
        """Of the slowest rank."""
        for rank in self._ranks:
            rank.stdin.write(f"{num_bytes} {iterations}\n")
            rank.stdin.flush()
        return max(map(float, self.answers()))

    def close(self) -> None:
        for rank in self._ranks:
            rank.stdin.close()
        for rank in self._ranks:
            rank.wait()


@dataclass(frozen=True)
class Comparison:
    """Of one size; times in microseconds, a pair per round.

    Attributes:
        speeds: time of the other build / time of this one, of each round, sorted.
    """

    other_us: float
    this_us: float
    speeds: list[float]

    def speed(self, part: float) -> float:
        """The smallest one that ``part`` of the rounds do not exceed."""
        return self.speeds[int(part * (len(self.speeds) - 1))]


def compare(other: Build, this: Build, num_bytes: int, rounds: int) -> Comparison:
    estimate_us = max(build.time_us(num_bytes, MIN_ITERATIONS) for build in (other, this))
    iterations = max(MIN_ITERATIONS, int(TURN_S * 1e6 / estimate_us))
    times: dict[Build, list[float]] = {other: [], this: []}
    for turn in range(rounds):
        for build in (other, this) if turn % 2 else (this, other):
            times[build].append(build.time_us(num_bytes, iterations))
    speeds = sorted(a / b for a, b in zip(times[other], times[this], strict=True))
    return Comparison(statistics.median(times[other]), statistics.median(times[this]), speeds)


@contextlib.contextmanager
def builds(checkouts: list[tuple[Path, str]], num_ranks: int) -> Iterator[list[Build]]:
    """The ranks of all of them, each with its transport, on this host."""
    with (
        tempfile.TemporaryDirectory(prefix="dmlcomm-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        started = []
        for index, (checkout, transport) in enumerate(checkouts):
            build = Build(checkout, num_ranks, transport, Path(folder, f"store{index}"))
            stack.callback(build.close)
            started.append(build)
        for build in started:
            build.answers()
        yield started


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.builds",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT")
    parser.add_argument(
        "--ranks", type=list_of(int), default=list(NUM_RANKS), help="numbers of ranks, 2,4"
    )
    parser.add_argument("--transport", default="auto", choices=TRANSPORTS)
    parser.add_argument("--other-transport", choices=TRANSPORTS, help="of OTHER_CHECKOUT's ranks")
    parser.add_argument("--congestion", help="TCP's; the system's by default")
    parser.add_argument("--sizes", type=list_of(parse_bytes), default=list(SIZES), help="1K,64M")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    if not (arguments.other / "dmlcomm").is_dir():
        parser.error(f"{arguments.other} has no folder dmlcomm; name a checkout that is built")
    checkouts = [
        (arguments.other.resolve(), arguments.other_transport or arguments.transport),
        (THIS, arguments.transport),
    ]
    console.print("| ranks | size | other build | this build | speed: median (quarter to three) |")
    console.print("|---|---|---|---|---|")
    with system_congestion(arguments.congestion):
        for num_ranks in arguments.ranks:
            with builds(checkouts, num_ranks) as (other, this):
                for size in arguments.sizes:
                    found = compare(other, this, size, arguments.rounds)
                    low, middle, high = (found.speed(part) for part in (0.25, 0.5, 0.75))
                    console.print(
                        f"| {num_ranks} | {human_bytes(size)} | {found.other_us:.1f} us "
                        f"| {found.this_us:.1f} us | {middle:.3f} ({low:.3f} to {high:.3f}) |"
                    )


if __name__ == "__main__":
    main()
