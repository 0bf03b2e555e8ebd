"""What a switch's classifiers cost, and how soon the window follows: eBPF against u32 filters.

    python -m benchmarks.prio.classifiers [--quick] [--json FILE]

Frames of one layer leave by a port of a lab's switch at 10 Gb/s, so that none waits long: without
queues by tickets, with those of `dmlcomm switch` and eBPF, and with u32 filters and the process
that moves them. All have their turn in every round; medians of the rounds.

send      of a frame, to where the host drops it: all that the kernel does
daemon    what the process does for a frame beside that, on another core if there is one
frames/s  of one core: of what sends, and with u32 filters of the slower one of both
reaction  from when a packet below the window is sent until queues are those of the new window;
          of u32 filters without the time until the process is awake

It needs the right to load eBPF programs.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import report
from benchmarks.prio.classifiers_node import CLASSIFIERS, NONE, Case
from dmlcomm.lab import Lab
from dmlcomm.prio.switch import kernel

TOPOLOGY, RATE = "flat:2,1", "10gbit"
NODE = "switch0.0"
FULL = Case(frames=20_000, moves=20, rounds=7)
QUICK = Case(frames=2_000, moves=3, rounds=1)
NAMES = {NONE: "without", "ebpf": "eBPF", "u32": "u32 filters"}


def measure(case: Case) -> list[dict]:
    """Medians, by contestant. Raises SystemExit."""
    command = [sys.executable, "-m", "benchmarks.prio.classifiers_node", json.dumps(asdict(case))]
    with Lab(TOPOLOGY, rate=RATE) as lab:
        done = lab.exec(NODE, command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the switch failed with exit code {done.returncode}")
    found = json.loads(done.stdout)
    return [
        {"contestant": name} | {key: statistics.median(values) for key, values in lists.items()}
        for name, lists in found.items()
    ]


def table(records: list[dict]) -> str:
    lines = ["| | send | daemon | frames/s | reaction |", "|---|---|---|---|---|"]
    for record in records:
        send_ns, daemon_ns = record["send_ns"], record["daemon_ns"]
        has_daemon = record["contestant"] == "u32"
        cells = [
            f"{send_ns:.0f} ns",
            f"{daemon_ns:.0f} ns" if has_daemon else "-",
            f"{1e9 / max(send_ns, daemon_ns):,.0f}",
            f"{record['reaction_us']:.0f} µs" if "reaction_us" in record else "-",
        ]
        lines.append(f"| {NAMES[record['contestant']]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prio.classifiers")
    parser.add_argument("--quick", action="store_true", help="few frames")
    parser.add_argument("--json", type=Path, help="also write JSON lines to this file")
    options = parser.parse_args()
    reason = kernel.why_not_permitted()
    if reason:
        raise SystemExit(f"{CLASSIFIERS[0]} cannot be measured: {reason}")
    records = measure(QUICK if options.quick else FULL)
    print(table(records))
    if options.json:
        options.json.unlink(missing_ok=True)
        report.append_json_lines(options.json, [report.environment(), *records])


if __name__ == "__main__":
    main()
