"""Experiments that are simulated: records in a file, and a table of each in a page."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.prio.page import write_table

Record = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """``play`` gives records, ``table`` makes rows of them, the header first; ``draw`` a PNG."""

    play: Callable[[], Iterable[Record]]
    table: Callable[[list[Record]], Iterator[list[str]]]
    draw: Callable[[list[Record], Path], None] | None = None


def table_of(experiment: Experiment, records: list[Record]) -> str:
    """An experiment's records as a table in Markdown."""
    rows = list(experiment.table(records))
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(name: str, experiments: Mapping[str, Experiment], description: str) -> None:
    """``python -m benchmarks.reproduce_NAME``: plays what the command line asks for.

    Records go to reproduction-NAME.json (JSON lines), tables between the page's marks
    ``<!-- NAME: experiment -->`` and ``<!-- end -->``. Pictures of the records, with --draw, are
    reproduction-NAME-experiment.png.
    """
    options = _parse(name, experiments, description)
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / f"reproduction-{name}.json"
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines]
    if options.draw:
        for only, experiment in experiments.items():
            if experiment.draw:
                found = [record for record in records if record["experiment"] == only]
                experiment.draw(found, options.folder / f"reproduction-{name}-{only}.png")
        return
    for only in options.only:
        found = list(experiments[only].play())
        records = [record for record in records if record["experiment"] != only]
        records += [{"experiment": only} | record for record in found]
        file.unlink(missing_ok=True)
        report.append_json_lines(file, records)
        table = table_of(experiments[only], found)
        print(f"{only}\n\n{table}\n", flush=True)
        if options.page:
            write_table(options.page, f"{name}: {only}", table)


def _parse(
    name: str, experiments: Mapping[str, Experiment], description: str
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.reproduce_{name}", description=description
    )
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    parser.add_argument("--page", type=Path, help="a Markdown file with marks for the tables")
    parser.add_argument("--only", nargs="+", choices=experiments, default=list(experiments))
    parser.add_argument("--draw", action="store_true", help="play nothing: draw the records")
    return parser.parse_args()
