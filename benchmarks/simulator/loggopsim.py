"""`dmlcomm plan` against LogGOPSim, which simulates the same schedules by its own rules.

    python -m benchmarks.simulator.loggopsim FOLDER [--size SIZE]

FOLDER has the programs LogGOPSim and txt2bin, built from LogGOPSim's sources. Each case is planned,
written as a GOAL file, and read and simulated by them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import report

CASES = (
    ("flat:4,1", "ring"),
    ("flat:8,1", "ring"),
    ("flat:8,1", "halving_doubling"),
    ("flat:8,1", "recursive_doubling"),
    ("flat:16,1", "halving_doubling"),
    ("flat:16,1", "tree"),
    ("flat:8,1", "direct"),
    ("flat:9,1", "recursive_doubling"),
)
# LogGOPSim counts whole nanoseconds for a byte: at this rate one takes 42 with headers.
RATE = "199155062bit"
# The planner's prices of a switched network, in ns: latency, per message at a host, between
# messages, per byte. Messages of any size are sent without a handshake.
PRICES = ("-L", "30000", "-o", "2000", "-g", "0", "-G", "42", "-S", "1000000000")


def planned_s(topology: str, algorithm: str, size: str, trace: Path) -> float:
    """What `dmlcomm plan` expects. The schedule is in ``trace`` then."""
    network = ("--topology", topology, "--rate", RATE, "--size", size)
    wanted = ("--algorithm", algorithm, "--trace", str(trace), "--json")
    plan = json.loads(_output(sys.executable, "-m", "dmlcomm", "plan", *network, *wanted))
    (seconds,) = (a["seconds"] for a in plan["algorithms"] if a["name"] == algorithm)
    return seconds


def simulated_s(folder: Path, trace: Path) -> float:
    """When LogGOPSim's last host has ended."""
    binary = trace.with_suffix(".bin")
    _output(str(folder / "txt2bin"), "-i", str(trace), "-o", str(binary))
    said = _output(str(folder / "LogGOPSim"), "-f", str(binary), *PRICES)
    ends = re.findall(r"^Host \d+: (\d+)$", said, re.MULTILINE)
    if not ends:
        raise SystemExit(f"LogGOPSim names no host's end: {said[-500:]}")
    return max(map(int, ends)) / 1e9


def rows(folder: Path, size: str) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace.goal"
        for topology, algorithm in CASES:
            ours = planned_s(topology, algorithm, size, trace)
            theirs = simulated_s(folder, trace)
            yield [
                f"`{topology}`",
                algorithm,
                f"{ours * 1e3:.1f} ms",
                f"{theirs * 1e3:.1f} ms",
                f"{ours / theirs - 1:+.1%}",
            ]


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing: build LogGOPSim first") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{' '.join(command)} failed: {error.stderr or error.stdout}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the programs LogGOPSim and txt2bin")
    parser.add_argument("--size", default="4MB", help="of the vector (default: %(default)s)")
    options = parser.parse_args()
    report.console.print("| network | algorithm | `dmlcomm plan` | LogGOPSim | difference |")
    report.console.print("|---|---|---|---|---|")
    for row in rows(options.folder.resolve(), options.size):
        report.console.print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
