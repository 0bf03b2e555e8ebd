"""Repeats the experiments of the PSNet paper in the lab.

    python -m benchmarks.reproduce_psnet --folder docs --page docs/reproduction.md      # measures
    python -m benchmarks.reproduce_psnet --folder docs --draw      # pictures of what was measured

Runs dmlcomm's parameter server, 2 servers and 6 workers, on PSNet and on a fat tree, and compares
with the paper's equations and results (docs/reproduction.md). Writes reproduction-psnet.json (JSON
lines) and pictures to the folder, the tables to the page, and prints them. What --only leaves out
keeps the records that the file has. The exit code is 1 when a weight is wrong.
"""

import argparse
import json
from pathlib import Path

from benchmarks import report
from benchmarks.reproduce_psnet import output
from benchmarks.reproduce_psnet.experiments import EXPERIMENTS
from benchmarks.reproduce_psnet.measure import measure

FILE = "reproduction-psnet.json"


def main() -> None:
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / FILE
    records = _read(file)
    if not options.draw:
        for name in options.only:
            records = [r for r in records if r["experiment"] != name] + _measured(name)
            file.unlink(missing_ok=True)
            report.append_json_lines(file, records)
    for name, table in output.tables(records).items():
        print(f"{EXPERIMENTS[name].title}\n\n{table}\n")
    if options.page:
        output.write_tables(options.page, records)
    for path in output.draw(records, options.folder):
        report.console.print(f"{path}")
    if any(record.get("wrong") for record in records):
        raise SystemExit(1)


def _measured(name: str) -> list[dict]:
    """The records of one experiment, behind what they were measured on."""
    records = [report.environment()]
    for run in EXPERIMENTS[name].runs:
        network = run.network
        report.console.print(f"{name}: {network.name}, {network.placement} …")
        records += measure(run)
    return [{"experiment": name} | record for record in records]


def _read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduce_psnet", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    parser.add_argument("--page", type=Path, help="a Markdown file with marks for the tables")
    known = ", ".join(EXPERIMENTS)
    parser.add_argument(
        "--only", type=_names, default=list(EXPERIMENTS), help=f"a comma list of {known}"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the file")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in EXPERIMENTS:
            known = ", ".join(EXPERIMENTS)
            raise argparse.ArgumentTypeError(f"there is no experiment {name!r}; one of {known}")
    return names


if __name__ == "__main__":
    main()
