"""Trees of proxies below a server: who is whose parent, and what a tree costs. Pure.

Proxies have places 0, 1, ...; the server is the root. Pushes are added up on the way to the root,
weights are copied on the way back, piece by piece, so all edges of a tree work at the same time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

ROOT = -1
SHAPES = ("flat", "binary", "rack", "rack-binary", "chain")
AUTO = "auto"

# Where nobody knows better.
RATE_BPS = 10e9
SHARD_BYTES = 8 << 20
# What a piece takes from host to host beside its bytes, where nobody knows better.
HOP_S = 200e-6

# Servers cut shards as csrc/ps/model_spec.cc says.
PIECES = 64
LEAST_PIECE_BYTES = 256 << 10
MOST_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Prices:
    """What trees are priced with. 0: not known.

    Attributes:
        rate_bps: of all NICs of a host.
        shard_bytes: of a model, the part of one server.
        oversubscription: the rates of a rack's hosts over that of its uplink.
        hop_s: what a piece takes from host to host beside its bytes.
    """

    rate_bps: float = 0.0
    shard_bytes: float = 0.0
    oversubscription: float = 0.0
    hop_s: float = 0.0

    def check(self) -> None:
        """Raises ValueError."""
        if min(self.rate_bps, self.shard_bytes, self.hop_s) < 0:
            raise ValueError(f"{self}: expected a rate, a size and a time that are not negative")
        if self.oversubscription and self.oversubscription < 1:
            raise ValueError(f"over-subscription {self.oversubscription:g}: expected 1 or more")


UNKNOWN = Prices()


def common(told: Iterable[Prices]) -> Prices:
    """Of what several proxies know: the least rate, the largest shard, the narrowest uplink,
    the longest way."""
    told = list(told)
    return Prices(
        rate_bps=min((one.rate_bps for one in told if one.rate_bps), default=0.0),
        shard_bytes=max((one.shard_bytes for one in told), default=0.0),
        oversubscription=max((one.oversubscription for one in told), default=0.0),
        hop_s=max((one.hop_s for one in told), default=0.0),
    )


def parents(shape: str, racks: Sequence[str], first: int = 0) -> list[int]:
    """By place, the place of the parent or ROOT.

    Args:
        shape: "flat": all below the server. "binary": two below each, one below the server.
            "rack": the first of each rack below the server, the others of the rack below it.
            "rack-binary": the same, but in a rack two below each.
            "chain": one below the other. "auto": the one that costs least.
        racks: by place, the name of its rack. Those of a rack follow each other.
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
    result = [ROOT] * len(racks)
    order = _in_order(racks, first) if racks else []
    members: dict[str, list[int]] = {}
    for i, place in enumerate(order):
        of_rack = members.setdefault(racks[place], [])
        of_rack.append(place)
        above = (len(of_rack) - 2) // 2  # in the rack; below 0 for its first place
        if shape == "chain" and i > 0:
            result[place] = order[i - 1]
        elif shape == "binary" and i > 0:
            result[place] = order[(i - 1) // 2]
        elif shape == "rack" and above >= 0:
            result[place] = of_rack[0]
        elif shape == "rack-binary" and above >= 0:
            result[place] = of_rack[above]
    return result


def avoiding(tree: Sequence[int], is_cut: Callable[[int, int], bool]) -> list[int]:
    """The tree without edges that are cut: a node goes to the next one above that it reaches.

    Args:
        is_cut: whether the nodes of two places do not reach each other. The root is reached by all.

    Example:
        >>> avoiding([ROOT, 0, 1], lambda node, parent: parent == 1)
        [-1, 0, 0]
    """
    result = []
    for node, parent in enumerate(tree):
        while parent != ROOT and is_cut(node, parent):
            parent = tree[parent]
        result.append(parent)
    return result


def first_of(server: int, num_servers: int, racks: Sequence[str]) -> int:
    """The place next to the root in the tree of a server.

    Servers take racks in turns, and in a rack places that are far apart: so inner nodes of one tree
    are leaves of another.
    """
    names = list(dict.fromkeys(racks))
    own = names[server % len(names)]
    members = [place for place, rack in enumerate(racks) if rack == own]
    return members[server * len(members) // num_servers]


def _in_order(racks: Sequence[str], first: int) -> list[int]:
    """All places from `first` on, rack by rack: few edges leave racks.

    Every rack begins as far behind its first place as the rack of `first`, so that the aggregators
    of all racks are others in the next tree.
    """
    members: dict[str, list[int]] = {}
    for place, rack in enumerate(racks):
        members.setdefault(rack, []).append(place)
    names = list(members)
    own = names.index(racks[first])
    turn = members[racks[first]].index(first)
    order = []
    for name in names[own:] + names[:own]:
        begin = turn % len(members[name])
        order += members[name][begin:] + members[name][:begin]
    return order


def children_of(tree: Sequence[int], node: int) -> list[int]:
    """Places whose parent is `node`, a place or ROOT."""
    return [place for place, parent in enumerate(tree) if parent == node]


def below(tree: Sequence[int], node: int) -> list[int]:
    """The places of the subtree, with `node` itself."""
    found = [node]
    for place in found:
        found.extend(children_of(tree, place))
    return sorted(found)


def piece_bytes(shard_bytes: float) -> float:
    """Of the pieces in which a shard passes."""
    return min(shard_bytes, MOST_PIECE_BYTES, max(shard_bytes / PIECES, LEAST_PIECE_BYTES))


def price(
    shape: str,
    racks: Sequence[str],
    prices: Prices = UNKNOWN,
    num_servers: int = 1,
) -> float:
    """Seconds of a push and a pull of a model: the way of one piece, and of the others at the
    busiest port.

    All hosts have one NIC, and servers are spread over the racks. Pushes and weights are on their
    way at the same time: a proxy receives a shard of each child and one of its parent, and sends
    as many.
    """
    firsts = [first_of(server, num_servers, racks) for server in range(num_servers)]
    trees = [parents(shape, racks, first) for first in firsts]
    shard_bytes = prices.shard_bytes or SHARD_BYTES
    second_per_byte = 8 / (prices.rate_bps or RATE_BPS)
    narrow = prices.oversubscription or 1.0
    degrees = [Counter(tree) for tree in trees]
    of_server = max(of_node[ROOT] for of_node in degrees)
    of_proxies = [num_servers + sum(d[place] for d in degrees) for place in range(len(racks))]
    of_uplinks = [
        sum(_crossing(tree, racks, rack) for tree in trees) * narrow / racks.count(rack)
        for rack in set(racks)
    ]
    first_bytes = piece_bytes(shard_bytes)
    others_bytes = max(of_server, *of_proxies, *of_uplinks) * (shard_bytes - first_bytes)
    hop_s = prices.hop_s or HOP_S
    way_s = max(_way(tree, hop_s, first_bytes * second_per_byte) for tree in trees)
    return 2 * way_s + others_bytes * second_per_byte


def _way(tree: Sequence[int], hop_s: float, piece_s: float) -> float:
    """Seconds of a piece from the farthest node to the root, or back.

    A node passes a piece on when it has those of all its children, which share its port.
    """
    degrees = Counter(tree)
    longest = 0.0
    for node in range(len(tree)):
        way_s = 0.0
        while node != ROOT:
            node = tree[node]
            way_s += hop_s + degrees[node] * piece_s
        longest = max(longest, way_s)
    return longest


def _crossing(tree: Sequence[int], racks: Sequence[str], rack: str) -> float:
    """How many edges are expected to leave the rack, if the server is in any rack."""
    share = 1 / len(set(racks))
    crossing = 0.0
    for place, parent in enumerate(tree):
        is_inside = racks[place] == rack
        if parent == ROOT:
            crossing += 1 - share if is_inside else share
        else:
            crossing += is_inside != (racks[parent] == rack)
    return crossing


def choose(racks: Sequence[str], prices: Prices = UNKNOWN, num_servers: int = 1) -> str:
    """The shape that costs least, the simplest of those within a hundredth of it.

    Example:
        >>> choose([""] * 4)
        'chain'
    """
    if not racks:
        return SHAPES[0]
    costs = {shape: price(shape, racks, prices, num_servers) for shape in SHAPES}
    least = min(costs.values())
    return next(shape for shape in SHAPES if costs[shape] <= 1.01 * least)
