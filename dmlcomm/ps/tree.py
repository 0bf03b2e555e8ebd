"""Trees of proxies below a server: who is whose parent, and what a tree costs. Pure.

Proxies have places 0, 1, ...; the server is the root. Pushes are added up on the way to the root,
weights are copied on the way back, piece by piece, so all edges of a tree work at the same time.
"""

from collections.abc import Sequence

ROOT = -1
SHAPES = ("flat", "binary", "rack", "chain")
AUTO = "auto"

# What a tree is priced with where nobody knows better: only the ratio of latency to the time of a
# piece matters for the choice, and most models have shards larger than this.
RATE_BPS = 10e9
HOP_S = 200e-6
SHARD_BYTES = 8 << 20
PIECES = 32


def parents(shape: str, racks: Sequence[str], first: int = 0) -> list[int]:
    """By place, the place of the parent or ROOT.

    Args:
        shape: "flat": all below the server. "binary": two below each, one below the server.
            "rack": the first of each rack below the server, the others of the rack below it.
            "chain": one below the other. "auto": the one that costs least.
        racks: by place, the name of its rack.
        first: place of the one next to the root; trees of different servers begin with different
            ones, and so have different inner nodes.

    Raises:
        ValueError: there is no such shape.

    Example:
        >>> parents("binary", [""] * 5)
        [-1, 0, 0, 1, 1]
    """
    if shape == AUTO:
        return parents(choose(racks), racks, first)
    if shape not in SHAPES:
        raise ValueError(f'tree "{shape}": expected one of {", ".join((AUTO, *SHAPES))}')
    num = len(racks)
    order = [(first + i) % num for i in range(num)]
    result = [ROOT] * num
    heads: dict[str, int] = {}
    for i, place in enumerate(order):
        if shape == "chain" and i > 0:
            result[place] = order[i - 1]
        elif shape == "binary" and i > 0:
            result[place] = order[(i - 1) // 2]
        elif shape == "rack":
            head = heads.setdefault(racks[place], place)
            result[place] = ROOT if head == place else head
    return result


def children_of(tree: Sequence[int], node: int) -> list[int]:
    """Places whose parent is `node`, a place or ROOT."""
    return [place for place, parent in enumerate(tree) if parent == node]


def depth_of(tree: Sequence[int]) -> int:
    """Edges from the root to the node that is farthest from it."""
    depth = [0] * len(tree)
    for place in range(len(tree)):
        node = place
        while node != ROOT:
            depth[place] += 1
            node = tree[node]
    return max(depth, default=0)


def below(tree: Sequence[int], node: int) -> list[int]:
    """The places of the subtree, with `node` itself."""
    found = [node]
    for place in found:
        found.extend(children_of(tree, place))
    return sorted(found)


def price(
    tree: Sequence[int],
    racks: Sequence[str],
    *,
    shard_bytes: float = SHARD_BYTES,
    rate_bps: float = RATE_BPS,
    hop_s: float = HOP_S,
    oversubscription: float = 1.0,
) -> float:
    """Seconds of a push and a pull of one shard: the busiest port, and the way of one piece.

    All hosts have one NIC of `rate_bps`; the server is in a rack of its own. A rack's uplink has
    the rates of its hosts over `oversubscription`.
    """
    second_per_byte = 8 / rate_bps
    degrees = [len(children_of(tree, node)) for node in (ROOT, *range(len(tree)))]
    busiest = max(*degrees, 1) * shard_bytes * second_per_byte
    for rack in set(racks):
        hosts = racks.count(rack)
        crossing = [
            place
            for place, parent in enumerate(tree)
            if (racks[place] == rack) != (parent != ROOT and racks[parent] == rack)
        ]
        rate = hosts / oversubscription
        busiest = max(busiest, len(crossing) * shard_bytes * second_per_byte / rate)
    # A node passes a piece on when it has those of all its children.
    piece = max(*degrees, 1) * shard_bytes / PIECES * second_per_byte
    return busiest + 2 * depth_of(tree) * (hop_s + piece)


def choose(racks: Sequence[str], **prices: float) -> str:
    """The shape that costs least, the simplest of those within a hundredth of it.

    Example:
        >>> choose([""] * 4)
        'chain'
    """
    costs = {shape: price(parents(shape, racks), racks, **prices) for shape in SHAPES}
    least = min(costs.values(), default=0.0)
    return next(shape for shape in SHAPES if costs[shape] <= 1.01 * least)
