"""Which gradients travel together."""

import math
from collections.abc import Callable, Hashable, Sequence


def make_groups(
    order: Sequence[int],
    bytes_of: Callable[[int], int],
    kind_of: Callable[[int], Hashable],
    limit_bytes: float,
    first_bytes: float = math.inf,
) -> list[list[int]]:
    """Cuts `order` into groups of neighbours, as they become ready in backward.

    Args:
        order: the parameters, by number, in the order in which their gradients are ready.
        bytes_of: the size of a parameter.
        kind_of: parameters of different kinds (type, device) are in different groups.
        limit_bytes: a group is closed before a parameter that makes it larger than this.
        first_bytes: the first group of a kind is closed behind the parameter with which it has as
            much, so that sending begins early.

    Returns:
        Groups in the order in which their last gradients are ready.
    """
    closed: list[list[int]] = []
    open_groups: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    begun: set[Hashable] = set()  # kinds whose first group is closed
    for number in order:
        kind, size = kind_of(number), bytes_of(number)
        if kind in open_groups and filled[kind] + size > limit_bytes:
            closed.append(open_groups.pop(kind))
            begun.add(kind)
        if kind not in open_groups:
            open_groups[kind], filled[kind] = [], 0
        open_groups[kind].append(number)
        filled[kind] += size
        if kind not in begun and filled[kind] >= first_bytes:
            closed.append(open_groups.pop(kind))
            begun.add(kind)
    place = {number: index for index, number in enumerate(order)}
    return sorted([*closed, *open_groups.values()], key=lambda group: place[group[-1]])
