"""The simulator against the lab: scenarios of 16 hosts, played by both.

    python -m benchmarks.simulator [--only NAME …] [--folder FOLDER] [--page FILE] [--strict]

A job's time is from its first rank's begin to its last rank's end. All results are compared with
what they should be. The exit code is 1 if one is wrong, or with --strict if a bar is missed: each
job within 10 % of the lab, 5 % on average.
"""

import argparse
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


def compare(names: Iterable[str]) -> Iterator[Record]:
    """A record per job of each scenario."""
    for name in names:
        content = SCENARIOS[name]
        simulated = {job.job.name: job.seconds for job in Player(parse(content), 0).run().jobs}
        for job, played in play(content).items():
            yield {
                "scenario": name,
                "job": job,
                "lab_s": played.seconds,
                "simulated_s": simulated[job],
                "difference": simulated[job] / played.seconds - 1,
                "wrong": played.wrong,
            }


def table(records: list[Record]) -> Iterator[list[str]]:
    yield ["scenario", "topology", "job", "lab", "simulated", "difference"]
    for r in records:
        yield [
            r["scenario"],
            f"`{SCENARIOS[r['scenario']]['topology']}`",
            r["job"],
            f"{r['lab_s']:.3f} s",
            f"{r['simulated_s']:.3f} s",
            f"{r['difference']:+.1%}",
        ]


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
    for name in options.only:
        found = list(compare([name]))
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
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
