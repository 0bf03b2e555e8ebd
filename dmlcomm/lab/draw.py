"""``lab draw``: a picture of a topology. Needs matplotlib (``pip install dmlcomm[lab]``)."""

from pathlib import Path
from typing import Any

import networkx as nx

from dmlcomm.errors import LabError
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind
from dmlcomm.topology.shape import format_link_rate

COLOURS = {NodeKind.HOST: "#2f6f9f", NodeKind.SWITCH: "#d9822b", NodeKind.ROUTER: "#6b8e23"}
MARKERS = {NodeKind.HOST: "o", NodeKind.SWITCH: "s", NodeKind.ROUTER: "D"}
LEVEL_COLOURS = ["#4c72b0", "#c44e52", "#55a868", "#8172b2", "#937860"]
DOWN_COLOUR = "#bbbbbb"

LEGEND_COLUMNS = 2
DOTS_PER_INCH = 100
INCHES_PER_NODE = 0.9

# Node -> position; rows are 1 apart, columns fill the width from 0 to 1.
Positions = dict[str, tuple[float, float]]


def draw(graph: nx.Graph, path: Path) -> None:
    """Writes a PNG. Raises LabError without matplotlib, OSError when the file cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LabError("lab draw needs matplotlib: pip install matplotlib") from error
    rows = _rows(graph)
    width = max(6.0, INCHES_PER_NODE * max(len(row) for row in rows))
    figure = Figure(figsize=(width, 1.6 * len(rows) + 1.2), dpi=DOTS_PER_INCH)
    axes = figure.add_subplot()
    positions = _positions(rows)
    _draw_links(axes, graph, positions)
    _draw_nodes(axes, graph, positions)
    axes.set_title(_title(graph))
    axes.margins(0.06, 0.2)
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(path, format="png", metadata={"Software": None})


def _rows(graph: nx.Graph) -> list[list[str]]:
    """From the bottom: BCube's levels alternate with hosts in the middle; trees stand on hosts;
    PSNet's ToRs are between workers and servers, SuperNode switches above."""
    hosts = topology.hosts(graph)
    routers = topology.nodes_of_kind(graph, NodeKind.ROUTER)
    workers = topology.hosts_of_role(graph, "worker")
    if routers and not topology.nodes_of_kind(graph, NodeKind.SWITCH):
        tiers = [[r for r in routers if r.startswith(tier)] for tier in ("edge", "agg", "core")]
        return [hosts, *[tier for tier in tiers if tier]]
    switches = topology.nodes_of_kind(graph, NodeKind.SWITCH)
    levels: dict[int, list[str]] = {}
    for switch in switches:
        levels.setdefault(topology.links_of(graph, switch)[0].level, []).append(switch)
    if workers:
        rows = [workers, switches, topology.hosts_of_role(graph, "server"), routers]
        return [row for row in rows if row]
    rows = [hosts]
    for level, row in sorted(levels.items()):
        rows = [*rows, row] if level % 2 == 0 else [row, *rows]
    return rows


def _positions(rows: list[list[str]]) -> Positions:
    return {
        node: ((column + 0.5) / len(row), float(height))
        for height, row in enumerate(rows)
        for column, node in enumerate(row)
    }


def _draw_links(axes: Any, graph: nx.Graph, positions: Positions) -> None:
    seen: set[int] = set()
    for link in topology.links(graph):
        xs, ys = zip(positions[link.a.node], positions[link.b.node], strict=True)
        label = f"level {link.level}: {_rates(graph, link.level)}"
        axes.plot(
            xs,
            ys,
            color=LEVEL_COLOURS[link.level % len(LEVEL_COLOURS)] if link.up else DOWN_COLOUR,
            linestyle="-" if link.up else ":",
            linewidth=1.3,
            zorder=1,
            label=label if link.level not in seen else None,
        )
        seen.add(link.level)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.02), "frameon": False}
    axes.legend(ncols=min(len(seen), LEGEND_COLUMNS), **place)


def _rates(graph: nx.Graph, level: int) -> str:
    rates = [link.shape.rate_bps for link in topology.links(graph) if link.level == level]
    return ", ".join(format_link_rate(rate) for rate in dict.fromkeys(rates))


def _draw_nodes(axes: Any, graph: nx.Graph, positions: Positions) -> None:
    for node, data in graph.nodes(data=True):
        x, y = positions[node]
        kind = NodeKind(data["kind"])
        axes.scatter([x], [y], s=420, color=COLOURS[kind], marker=MARKERS[kind], zorder=2)
        axes.annotate(node, (x, y), (0, -18), textcoords="offset points", ha="center", fontsize=8)


def _title(graph: nx.Graph) -> str:
    num_hosts = len(topology.hosts(graph))
    return f"{graph.graph['spec']}: {num_hosts} hosts, {len(graph) - num_hosts} switches"
