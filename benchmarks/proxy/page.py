"""The table and the picture of trees in the lab for docs/reproduction.md, from what was measured.

    python -m benchmarks.proxy --json docs/reproduction-proxy.json    # measures
    python -m benchmarks.proxy.page --folder docs [--page docs/reproduction.md]

Reads reproduction-proxy.json in the folder and writes reproduction-proxy.png there, and the table
to the page.
"""

import argparse
import json
from pathlib import Path

from benchmarks.prio.page import write_table

FILE = "reproduction-proxy.json"
PICTURE = "reproduction-proxy.png"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy.page")
    parser.add_argument("--folder", type=Path, default=Path("docs"))
    parser.add_argument("--page", type=Path, help="a Markdown file with marks for the table")
    options = parser.parse_args()
    lines = map(json.loads, (options.folder / FILE).read_text().splitlines())
    rows = [line for line in lines if "case" in line]
    if options.page:
        write_table(options.page, "proxy", table(rows))
    draw(rows, options.folder / PICTURE)


def table(rows: list[dict]) -> str:
    """Each against workers that talk to the server, in the same run."""
    lines = [
        "| tree | step | directly | | bytes into the server | wrong |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {_shape(row)} | {row['seconds'] * 1e3:.0f} ms | {row['peer_s'] * 1e3:.0f} ms "
            f"| {row['speedup']:.1f} times as fast | {_bytes(row)} | {row['wrong']} |"
        )
    return "\n".join(lines)


def draw(rows: list[dict], path: Path) -> None:
    """Steps of all shapes, from the slowest; the line is the bound. Needs matplotlib."""
    from matplotlib.figure import Figure

    bars = {_shape(row): row["seconds"] for row in rows}
    bars["directly"] = rows[0]["peer_s"]
    names = sorted(bars, key=bars.__getitem__)
    figure = Figure(figsize=(6.4, 0.4 * len(names) + 1.0), dpi=100)
    axes = figure.subplots()
    drawn = axes.barh(names, [bars[name] for name in names], color="tab:blue")
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.axvline(rows[0]["bound_s"], color="tab:red", linewidth=1)
    axes.set_xlabel("seconds of a push and pull; the line: one model over one NIC")
    axes.margins(x=0.1)
    figure.tight_layout()
    figure.savefig(path, format="png", metadata={"Software": None})


def _shape(row: dict) -> str:
    return str(row["case"].rpartition(", ")[2])


def _bytes(row: dict) -> str:
    """Of its remark, as "40 MB per step into the servers, 640 MB direct"."""
    return str(row["remark"].partition(" per step")[0])


if __name__ == "__main__":
    main()
