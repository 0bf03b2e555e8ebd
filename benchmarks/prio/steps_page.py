"""The table and the picture of `steps` for docs/reproduction.md.

    python -m benchmarks.prio.steps_page --folder docs --page docs/reproduction.md     # measures
        [--models vgg19] [--lab flat:4,1 200mbit]     # these alone; others stay as they are
    python -m benchmarks.prio.steps_page --folder docs --draw     # the picture alone

Writes reproduction-steps.json (JSON lines: one per lab and model) and the picture to the folder,
and the table to the page. The exit code is 1 when a weight is wrong.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.prio.page import write_table
from benchmarks.prio.settings import RATE, Settings, add_choice, chosen
from benchmarks.prio.steps import bounds_s, measure
from benchmarks.training.models import MODELS
from dmlcomm.units import parse_rate

FILE = "reproduction-steps.json"
PICTURE = "reproduction-steps.png"
TRACED_STEPS = 5
DRAWN_STEPS = 2  # behind the first one
DRAWN_MODEL = "resnet50"  # in the first lab; if it was never measured, the first replay
DRAWN = ("ddp", "cross", "dear")
BIN_S = 0.01  # several bursts of the shaper
COMPUTING = {"forward": "tab:green", "backward": "tab:blue"}
FULL_BIN = parse_rate(RATE) / 8 * BIN_S  # bytes
COLUMNS = ("ddp", "hook", "plain", "cross", "dear", "auto")


def main() -> None:
    options = _parse()
    settings = chosen(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / FILE
    records = _read(file)
    if not options.draw:
        for topology, rate in settings.labs:
            for model in settings.models:
                records[topology, rate, model] = _measured(settings, topology, rate, model)
                _write(file, records)
    print(_table(records))
    if options.page:
        write_table(options.page, "steps", _table(records))
    traced = [record for record in records.values() if record["timelines"]]
    if traced:
        traced.sort(key=lambda record: record["model"] != DRAWN_MODEL)
        _draw(traced[0], options.folder / PICTURE)
    if any(record["wrong"] for record in records.values()):
        raise SystemExit(1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prio.steps_page")
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    parser.add_argument("--page", type=Path, help="a Markdown file with marks for the table")
    parser.add_argument("--quick", action="store_true", help="two hosts and few steps")
    add_choice(parser)
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the file")
    return parser.parse_args()


def drawn_model(models: Sequence[str]) -> str | None:
    """Of those that are measured; real ones keep no diary."""
    replays = [model for model in models if model in MODELS]
    return DRAWN_MODEL if DRAWN_MODEL in replays else next(iter(replays), None)


def _measured(settings: Settings, topology: str, rate: str, model: str) -> dict:
    traced = TRACED_STEPS if model == drawn_model(settings.models) else 0
    result = measure(settings, topology, rate, model, traced)
    found = [line for line in result.pop("timelines") if line["rank"] == 0]
    drawn = {line["timeline"]: _cut(line) for line in found if line["timeline"] in DRAWN}
    return result | {"environment": report.environment()["environment"], "timelines": drawn}


def _cut(line: dict) -> dict:
    """The steps that are drawn: from the beginning of a forward pass; bytes by bin and ticket."""
    begins = [e["begin_s"] for e in line["computed"] if e["is_forward"] and e["layer"] == 0]
    begin, end = begins[1], begins[1 + DRAWN_STEPS]
    bins: dict[tuple, int] = {}
    for packet in line["packets"]:
        if begin <= packet["at_s"] < end:
            key = int((packet["at_s"] - begin) / BIN_S), packet["layer"]
            bins[key] = bins.get(key, 0) + packet["num_bytes"]
    computed = [
        [e["is_forward"], *(round(e[key] - begin, 4) for key in ("begin_s", "end_s"))]
        for e in line["computed"]
        if begin <= e["begin_s"] < end
    ]
    wire = [[*key, bins[key]] for key in sorted(bins, key=str)]
    return {"seconds": round(end - begin, 4), "computed": computed, "wire": wire}


def _read(file: Path) -> dict[tuple[str, str, str], dict]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {(r["topology"], r["rate"], r["model"]): r for r in map(json.loads, lines)}


def _write(file: Path, records: dict[tuple[str, str, str], dict]) -> None:
    file.unlink(missing_ok=True)
    report.append_json_lines(file, list(records.values()))


def _table(records: dict[tuple[str, str, str], dict]) -> str:
    lines = [
        f"| lab | model | computing | communication | bound | {' | '.join(COLUMNS)} |",
        f"|---|---|---|---|---|{'---|' * len(COLUMNS)}",
    ]
    for record in records.values():
        seconds, bounds = record["seconds"], bounds_s(record)
        cells = [f"{value * 1e3:.0f}" for value in (seconds["alone"], record["exchange_s"])]
        cells += [_cell(bounds["cross"], bounds["ddp"]), f"{seconds['ddp'] * 1e3:.0f}"]
        cells += [_cell(seconds.get(name), seconds["ddp"]) for name in COLUMNS[1:]]
        lab = f"{record['topology']}, {record['rate']}"
        kind = "" if record["model"] in MODELS else " (real)"
        lines.append(f"| {lab} | {record['model']}{kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(seconds: float | None, ddp_s: float) -> str:
    """In ms, and against DDP."""
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ({seconds / ddp_s - 1:+.1%})"


def _draw(record: dict, path: Path) -> None:
    """What a host computes, and below it what is on its wire, a color per ticket."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    drawn = {name: record["timelines"][name] for name in DRAWN}
    size = {"figsize": (11, 7), "sharex": True, "layout": "constrained"}
    figure, rows = pyplot.subplots(len(drawn), 1, **size)
    tickets = {ticket for line in drawn.values() for _, ticket, _ in line["wire"]} - {None}
    shades = pyplot.get_cmap("turbo_r")
    colors = {t: shades(i / len(tickets)) for i, t in enumerate(sorted(tickets))} | {None: "0.6"}
    for axes, (name, line) in zip(rows, drawn.items(), strict=True):
        _draw_computing(axes, line["computed"])
        _draw_wire(axes, line["wire"], colors)
        step_ms = line["seconds"] / DRAWN_STEPS * 1e3
        axes.set(title=f"{name}: {step_ms:.0f} ms a step", yticks=(), ylim=(0, 1.6), xlim=(0, None))
    figure.suptitle(f"{record['model']} on {record['topology']} at {record['rate']}")
    rows[-1].set_xlabel("ms")
    legend = [Patch(color=color, label=label) for label, color in COMPUTING.items()]
    legend += [Patch(color=colors[t], label=f"ticket {t}") for t in sorted(tickets)]
    legend.append(Patch(color=colors[None], label="no ticket"))
    figure.legend(handles=legend, loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    report.console.print(str(path))


def _draw_computing(axes, computed: list[list]) -> None:
    """A strip above the wire; where it is white the host waits."""
    for is_forward, begin, end in computed:
        color = COMPUTING["forward" if is_forward else "backward"]
        axes.bar(begin * 1e3, 0.3, (end - begin) * 1e3, 1.25, color=color, align="edge")


def _draw_wire(axes, wire: list[list], colors: dict) -> None:
    """Shares of the link's rate, the smallest ticket at the bottom."""
    filled: dict[int, float] = {}
    for number, ticket, num_bytes in sorted(wire, key=lambda e: (e[0], e[1] is None, e[1] or 0)):
        share, below = num_bytes / FULL_BIN, filled.get(number, 0.0)
        begin, width = number * BIN_S * 1e3, BIN_S * 1e3
        axes.bar(begin, share, width, below, color=colors[ticket], align="edge")
        filled[number] = below + share


if __name__ == "__main__":
    main()
