"""The table and the picture of `switch` for docs/reproduction.md.

    python -m benchmarks.prio.switch_page --folder docs --page docs/reproduction.md     # measures
    python -m benchmarks.prio.switch_page --folder docs --draw     # the picture alone

Writes reproduction-tickets.json (JSON lines) and the picture to the folder, and the table to the
page. The exit code is 1 when a byte is wrong.
"""

import argparse
import json
from pathlib import Path

from benchmarks import report
from benchmarks.prio.page import write_table
from benchmarks.prio.settings import FULL
from benchmarks.prio.switch import NUM_LAYERS, NUM_WORKERS, REFERENCE, measure
from benchmarks.prio.switch_rank import BIN_S

FILE = "reproduction-tickets.json"
PICTURE = "reproduction-tickets.png"
DRAWN = (REFERENCE, "network")
# Of the TensorExpress paper (table I and section IV): ms, and against its own switch without
# scheduling. It gives no delays of layers 1 and 2.
PAPER = (
    "| paper: without | 315 / 697 / 856 | 623 | | | | |",
    "| paper: TensorExpress | 222 / 338 / 352 (-29% / -51% / -59%) | 304 (-46%) "
    "| | -49% | | +11.5% |",
)
TITLES = {
    REFERENCE: "no tickets",
    "plain": "no tickets, one connection",
    "host": "host only",
    "network": "network only",
    "both": "both",
}
COLORS = ("tab:red", "tab:orange", "tab:blue")
NO_MARK = "0.6"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prio.switch_page")
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    parser.add_argument("--page", type=Path, help="a Markdown file with marks for the table")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the file")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / FILE
    if not options.draw:
        file.unlink(missing_ok=True)
        report.append_json_lines(file, [report.environment(), *_measured()])
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records = [record for record in records if "contestant" in record]
    print(table(records))
    if options.page:
        write_table(options.page, "tickets", table(records))
    report.console.print(str(_draw(records, options.folder / PICTURE)))
    if any(record["wrong"] for record in records):
        raise SystemExit(1)


def _measured() -> list[dict]:
    return [
        {
            "contestant": name,
            "rounds": len(outcome.delays_s),
            "median_ms": [
                [round(outcome.median_s(w, layer) * 1e3, 1) for layer in range(NUM_LAYERS)]
                for w in range(NUM_WORKERS)
            ],
            "mean_ms": [round(outcome.mean_s(layer) * 1e3, 1) for layer in range(NUM_LAYERS)],
            "wrong": outcome.wrong,
            "wire": outcome.typical_wire(),
        }
        for name, outcome in measure(FULL.switch_rounds).items()
    ]


def table(records: list[dict]) -> str:
    """Every worker and layer, with means over the workers, below the paper's."""
    workers = " / ".join(str(worker) for worker in range(1, NUM_WORKERS + 1))
    heads = ["blocking time", *(f"layer {layer}" for layer in range(1, NUM_LAYERS))]
    columns = "".join(f" {head}, workers {workers} | mean |" for head in heads)
    lines = ["| |" + columns, "|---|" + "---|---|" * NUM_LAYERS, *PAPER]
    by_name = {record["contestant"]: record for record in records}
    reference = by_name[REFERENCE]
    for name, title in TITLES.items():
        record = by_name[name]
        before = None if name == REFERENCE else reference
        cells = [cell for layer in range(NUM_LAYERS) for cell in _cells(record, before, layer)]
        lines.append(f"| {title} (`{name}`) | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(record: dict, reference: dict | None, layer: int) -> tuple[str, str]:
    """A layer's delays by worker, and their mean, in ms and against the reference."""
    delays, mean = [d[layer] for d in record["median_ms"]], record["mean_ms"][layer]
    each, of_all = " / ".join(f"{delay:.0f}" for delay in delays), f"{mean:.0f}"
    if reference is None:
        return each, of_all
    before = [d[layer] for d in reference["median_ms"]]
    pairs = zip(delays, before, strict=True)
    changes = " / ".join(f"{delay / other - 1:+.0%}" for delay, other in pairs)
    return f"{each} ({changes})", f"{of_all} ({mean / reference['mean_ms'][layer] - 1:+.0%})"


def _draw(records: list[dict], path: Path) -> Path:
    """Who was on the wire to the server when: a row per worker, a color per layer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    drawn = [next(r for r in records if r["contestant"] == name) for name in DRAWN]
    size = {"figsize": (10, 4.5), "sharex": True, "layout": "constrained"}
    figure, rows = pyplot.subplots(len(drawn), 1, **size)
    for axes, record in zip(rows, drawn, strict=True):
        most = max(entry["bytes"] for entry in record["wire"])
        for entry in record["wire"]:
            color = NO_MARK if entry["layer"] is None else COLORS[min(entry["layer"], 2)]
            height = 0.9 * entry["bytes"] / most
            below = entry["worker"] - 0.45
            axes.bar(entry["bin"] * BIN_S * 1e3, height, BIN_S * 1e3, below, color=color)
        axes.set(title=record["contestant"], ylabel="worker", yticks=range(1, NUM_WORKERS + 1))
    rows[-1].set_xlabel("ms")
    legend = [Patch(color=color, label=f"layer {i}") for i, color in enumerate(COLORS)]
    legend.append(Patch(color=NO_MARK, label="no mark"))
    figure.legend(handles=legend, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    main()
