"""``proxy draw --picture``: trees beside each other. Needs matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmlcomm.ps import tree

SERVER_COLOUR = "#444444"
RACK_COLOURS = ["#2f6f9f", "#d9822b", "#6b8e23", "#8172b2", "#c44e52", "#937860"]

INCHES_OF_TREE = 3.2
INCHES_HIGH = 4.2
DOTS_PER_INCH = 100

# By place or ROOT; levels are 1 apart, the server is at 0 and all others below it.
Positions = dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Tree:
    """A title, and by place the parent (as `tree.parents` returns it) and the name of its rack."""

    title: str
    parents: Sequence[int]
    racks: Sequence[str]


def planned(racks: Sequence[str], prices: tree.Prices, num_servers: int) -> list[Tree]:
    """All shapes, with their times.

    Args:
        racks: by place, the name of its rack, as `tree.parents` takes them.
    """
    chosen = tree.choose(racks, prices, num_servers)
    trees = []
    for shape in tree.SHAPES:
        seconds = tree.price(shape, racks, prices, num_servers)
        remark = ", what auto takes" if shape == chosen else ""
        title = f"{shape}: {seconds * 1e3:.3g} ms{remark}"
        trees.append(Tree(title, tree.parents(shape, racks), racks))
    return trees


def running(answer: dict[str, Any]) -> list[Tree]:
    """Of a proxy's status: the trees that it is in, those of all servers of its jobs."""
    return [
        Tree(
            f"job {number}, server {node['server']}: {node['shape']}",
            [place["parent"] for place in node["tree"]],
            [place["rack"] for place in node["tree"]],
        )
        for number, job in enumerate(answer["jobs"])
        for node in job["nodes"]
        if node["tree"]
    ]


def draw(path: Path, trees: Sequence[Tree]) -> None:
    """Writes a PNG with the trees beside each other.

    Raises ValueError without trees or matplotlib, OSError if it cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("--picture needs matplotlib: pip install matplotlib") from error
    if not trees:
        raise ValueError(
            "there is no tree to draw: no job is attached, or it waits for its workers"
        )
    figure = Figure(figsize=(INCHES_OF_TREE * len(trees), INCHES_HIGH), dpi=DOTS_PER_INCH)
    (all_axes,) = figure.subplots(1, len(trees), squeeze=False)
    for axes, one in zip(all_axes, trees, strict=True):
        axes.set_title(one.title, fontsize=10)
        _draw_tree(axes, one.parents, one.racks)
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
