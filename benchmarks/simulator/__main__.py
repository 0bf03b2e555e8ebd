"""The simulator against the lab: scenarios of 16 hosts, played by both.

    python -m benchmarks.simulator [--only NAME …] [--runs N] [--folder FOLDER] [--page FILE]
        [--strict] [--simulate-only]

A job's time is from its first rank's begin to its last rank's end; of several runs the median
counts. All results are compared with what they should be. The exit code is 1 if one is wrong, or
with --strict if a bar is missed: each job within 10 % of the lab, 5 % on average.
"""

import argparse
import functools
import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.prio.page import write_table
from benchmarks.simulated import Experiment, Record, table_of
from benchmarks.simulator.lab_play import play
from benchmarks.simulator.scenarios import SCENARIOS
from dmlcomm.simulate.run import Player
from dmlcomm.simulate.scenario import parse

MOST_DIFFERENCE, MOST_MEAN = 0.10, 0.05
FILE, MARK = "simulator-lab.json", "simulator: lab"


def compare(names: Iterable[str], runs: int = 1) -> Iterator[Record]:
    """A record per job of each scenario."""
    for name in names:
        plays = [play(SCENARIOS[name]) for _ in range(runs)]
        for job in plays[0]:
            seconds = [played[job].seconds for played in plays]
            measured = {"lab_s": statistics.median(seconds), "runs_s": seconds}
            wrong = sum(played[job].wrong for played in plays)
            yield beside({"scenario": name, "job": job} | measured | {"wrong": wrong})


def beside(record: Record) -> Record:
    """What is simulated, beside what was measured."""
    seconds = _simulated(record["scenario"])[record["job"]]
    return record | {"simulated_s": seconds, "difference": seconds / record["lab_s"] - 1}


@functools.cache
def _simulated(name: str) -> dict[str, float]:
    """Seconds of each job of a scenario."""
    return {job.job.name: job.seconds for job in Player(parse(SCENARIOS[name]), 0).run().jobs}


def table(records: list[Record]) -> Iterator[list[str]]:
    yield ["scenario", "topology", "job", "lab", "simulated", "difference"]
    for r in records:
        yield [
            r["scenario"],
            f"`{SCENARIOS[r['scenario']]['topology']}`",
            r["job"],
            _lab(r),
            f"{r['simulated_s']:.3f} s",
            f"{r['difference']:+.1%}",
        ]


def _lab(record: Record) -> str:
    """The median, and the least and the most of several runs."""
    runs = record.get("runs_s", [])
    between = f" ({min(runs):.3f} to {max(runs):.3f})" if len(runs) > 1 else ""
    return f"{record['lab_s']:.3f} s{between}"


def missed(records: list[Record]) -> list[str]:
    """The bars that are."""
    found = [
        f"{r['scenario']}, {r['job']}: {r['difference']:+.1%}, at most {MOST_DIFFERENCE:.0%}"
        for r in records
        if abs(r["difference"]) > MOST_DIFFERENCE
    ]
    if (mean := mean_difference(records)) > MOST_MEAN:
        found.append(f"{mean:.1%} on average, at most {MOST_MEAN:.0%}")
    return found


def mean_difference(records: list[Record]) -> float:
    return statistics.mean(abs(r["difference"]) for r in records)


def main() -> None:
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / FILE
    before = _records(file)
    if options.simulate_only:
        before = [beside(record) for record in before]
        file.unlink(missing_ok=True)
        report.append_json_lines(file, before)
    for name in () if options.simulate_only else options.only:
        found = list(compare([name], options.runs))
        before = [r for r in before if r["scenario"] != name] + found
        file.unlink(missing_ok=True)
        report.append_json_lines(file, before)
        for r in found:
            print(f"{name}, {r['job']}: {r['difference']:+.1%}", flush=True)
    order = list(SCENARIOS)
    records = sorted(before, key=lambda r: order.index(r["scenario"]))
    text = table_of(Experiment(lambda: records, table), records)
    print(f"\n{text}\n\n{mean_difference(records):.1%} on average")
    if options.page:
        write_table(options.page, MARK, text)
    for line in missed(records):
        print(f"missed: {line}")
    if any(r["wrong"] for r in records) or (options.strict and missed(records)):
        raise SystemExit(1)


def _records(file: Path) -> list[Record]:
    if not file.exists():
        return []
    records: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    return [r for r in records if r["scenario"] in SCENARIOS]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulator", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    parser.add_argument("--page", type=Path, help="a Markdown file with a mark for the table")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--runs", type=int, default=1, help="of each scenario in the lab")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument(
        "--simulate-only", action="store_true", help="beside what was measured before"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
