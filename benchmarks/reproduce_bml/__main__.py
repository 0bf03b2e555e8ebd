"""Repeats the experiments of the BML paper in the lab.

    python -m benchmarks.reproduce_bml --folder docs      # measures; some minutes
    python -m benchmarks.reproduce_bml --folder docs --draw      # pictures of what was measured

Measures gradient synchronisation times of BML on BCube(3,2), (2,3) and (4,2) beside theory and
beside one NIC on as many hosts, and job completion times of LeNet-5 and VGG-19 on BCube(3,2)
against a P2P parameter server on one NIC (docs/reproduction.md). Writes reproduction.json (JSON
lines) and pictures to the folder, and prints the tables in Markdown. What --only leaves out keeps
the records that the file has. The exit code is 1 when a sum is wrong.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.arguments import comma_list
from benchmarks.reproduce_bml import measure, output
from benchmarks.reproduce_bml.paper import BCUBES, HOSTS, LENET5, VGG19, bml, p2p, ring

NETWORKS = {"bml": bml(3, 2), "p2p": p2p(HOSTS), "ring": ring(HOSTS)}

PARTS: dict[str, Callable[[], Iterator[dict]]] = {
    **{f"gst-{n}-{k}": partial(measure.gst, n, k) for n, k in BCUBES},
    **{
        f"{training.model}-{name}": partial(measure.jct, training, network)
        for training in (LENET5, VGG19)
        for name, network in NETWORKS.items()
    },
}


def main() -> None:
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "reproduction.json"
    records = _read(file)
    if not options.draw:
        for part in options.only:
            report.console.print(f"{part} …")
            records = [r for r in records if r["part"] != part]
            records += [{"part": part} | report.environment()]
            records += [{"part": part} | record for record in PARTS[part]()]
        file.unlink(missing_ok=True)
        report.append_json_lines(file, records)
        print(output.markdown(records))
    for path in output.draw(records, options.folder):
        report.console.print(f"{path}")
    if any(record.get("wrong") for record in records):
        raise SystemExit(1)


def _read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduce_bml", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    parser.add_argument(
        "--only",
        type=comma_list(PARTS, "part"),
        default=list(PARTS),
        help=f"a comma list of {', '.join(PARTS)}",
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
