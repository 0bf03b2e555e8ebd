"""``proxy draw --picture``: trees of all shapes beside each other. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dmlcomm.ps import tree

SERVER_COLOUR = "#444444"
RACK_COLOURS = ["#2f6f9f", "#d9822b", "#6b8e23", "#8172b2", "#c44e52", "#937860"]

INCHES_OF_SHAPE = 3.2
INCHES_HIGH = 4.2
DOTS_PER_INCH = 100

# By place or ROOT; levels are 1 apart, the server is at 0 and all others below it.
Positions = dict[int, tuple[float, float]]


def draw(path: Path, racks: Sequence[str], prices: tree.Prices, num_servers: int) -> None:
    """Writes a PNG. Raises ValueError without matplotlib, OSError if it cannot be written.

    Args:
        racks: by place, the name of its rack, as `tree.parents` takes them.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("--picture needs matplotlib: pip install matplotlib") from error
    chosen = tree.choose(racks, prices, num_servers)
    figure = Figure(figsize=(INCHES_OF_SHAPE * len(tree.SHAPES), INCHES_HIGH), dpi=DOTS_PER_INCH)
    for axes, shape in zip(figure.subplots(1, len(tree.SHAPES)), tree.SHAPES, strict=True):
        seconds = tree.price(shape, racks, prices, num_servers)
        remark = ", what auto takes" if shape == chosen else ""
        axes.set_title(f"{shape}: {seconds * 1e3:.3g} ms{remark}", fontsize=10)
        _draw_tree(axes, tree.parents(shape, racks), racks)
    figure.tight_layout()
    figure.savefig(path, format="png", metadata={"Software": None})


def _draw_tree(axes: Any, parents: Sequence[int], racks: Sequence[str]) -> None:
    positions = positions_of(parents)
    for place, parent in enumerate(parents):
        xs, ys = zip(positions[place], positions[parent], strict=True)
        axes.plot(xs, ys, color="#999999", linewidth=1.2, zorder=1)
    names = list(dict.fromkeys(racks))
    colours = [RACK_COLOURS[names.index(rack) % len(RACK_COLOURS)] for rack in racks]
    for node, (x, y) in positions.items():
        is_root = node == tree.ROOT
        colour = SERVER_COLOUR if is_root else colours[node]
        axes.scatter([x], [y], s=260, color=colour, marker="s" if is_root else "o", zorder=2)
        label = "S" if is_root else str(node)
        text = {"ha": "center", "va": "center", "fontsize": 8, "color": "white"}
        axes.annotate(label, (x, y), **text)
    axes.margins(0.15, 0.12)
    axes.axis("off")


def positions_of(parents: Sequence[int]) -> Positions:
    """Leaves stand side by side, in the order of a walk; others above the middle of theirs."""
    positions: Positions = {}
    leaves = 0

    def visit(node: int, depth: int) -> float:
        nonlocal leaves
        children = tree.children_of(parents, node)
        below = [visit(child, depth + 1) for child in children]
        if not below:
            leaves += 1
        x = (below[0] + below[-1]) / 2 if below else leaves - 1.0
        positions[node] = (x, float(-depth))
        return x

    visit(tree.ROOT, 0)
    return positions
