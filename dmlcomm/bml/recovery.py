"""Finds the grid that hosts form, from nothing but who shares a subnet with whom.

In a grid every host has one rail per level, and the subnet of a rail on level l holds exactly the
hosts that differ from it in digit l. The first host gets the digits 0, its rails are the levels in
their order, and the other hosts of its l-th subnet get the digits 1, 2, ... on level l. A host
whose distance from the first one is d >= 2 hops has d neighbours at distance d - 1; each has one of
its d digits replaced by 0, so that together they have all of them.

Digits that were found so are only a guess; whether the hosts are a grid is checked afterwards,
completely. For hosts in grid order the digits come out as they are.
"""

from collections.abc import Sequence

from dmlcomm.bml import grid
from dmlcomm.bml.hosts import Layout, Rails, members
from dmlcomm.rail import Subnet

Digits = tuple[int, ...]


class NoGridError(Exception):
    """The hosts are no grid; the text says why."""


def find_grid(names: Sequence[str], rails: Sequence[Rails]) -> Layout:
    """The grid that hosts with these names and rails form. Raises NoGridError."""
    lines = _lines(names, rails)
    digits = _digits(names, rails, lines)
    sizes = tuple(1 + max(column) for column in zip(*digits, strict=True))
    if len(set(digits)) != len(digits) or grid.num_hosts(sizes) != len(digits):
        raise NoGridError(f"{len(digits)} hosts do not fill a grid of {_shape(sizes)}")
    level_of = {subnet: _level(subnet, hosts, digits, sizes) for subnet, hosts in lines.items()}
    ordered = []
    for name, own in zip(names, rails, strict=True):
        if len({level_of[rail.subnet] for rail in own}) != len(sizes):
            raise NoGridError(f"two rails of {name} are on the same level")
        ordered.append(tuple(sorted(own, key=lambda rail: level_of[rail.subnet])))
    numbers = tuple(grid.from_digits(own, sizes) for own in digits)
    return Layout(sizes, numbers, tuple(ordered))


def _lines(names: Sequence[str], rails: Sequence[Rails]) -> dict[Subnet, list[int]]:
    """The hosts of each subnet, if their number can be that of a grid."""
    num_levels = len(rails[0])
    for name, own in zip(names, rails, strict=True):
        if len(own) != num_levels:
            raise NoGridError(f"{names[0]} has {num_levels} rails, and {name} has {len(own)}")
    if num_levels == 0:
        raise NoGridError("there are no rails")
    lines = members(rails)
    for subnet, hosts in lines.items():
        if len(hosts) == 1:
            raise NoGridError(f"{names[hosts[0]]} is alone in the subnet {subnet}")
        if len(set(hosts)) != len(hosts):
            twice = next(host for host in hosts if hosts.count(host) > 1)
            raise NoGridError(f"{names[twice]} has two rails in the subnet {subnet}")
    return lines


def _digits(
    names: Sequence[str], rails: Sequence[Rails], lines: dict[Subnet, list[int]]
) -> list[Digits]:
    """A guess for every host; right if the hosts are a grid."""
    num_levels = len(rails[0])
    neighbours = [{h for rail in own for h in lines[rail.subnet]} for own in rails]
    found: dict[int, Digits] = {0: (0,) * num_levels}
    for level, rail in enumerate(rails[0]):
        others = [host for host in lines[rail.subnet] if host != 0]
        for digit, host in enumerate(others, 1):
            found[host] = tuple(digit if i == level else 0 for i in range(num_levels))
    layer = set(found) - {0}
    while layer:
        further = {other for host in layer for other in neighbours[host]} - found.keys()
        for host in further:
            nearer = [found[other] for other in neighbours[host] & layer]
            found[host] = tuple(max(column) for column in zip(*nearer, strict=True))
        layer = further
    for host, name in enumerate(names):
        if host not in found:
            raise NoGridError(f"no subnets lead from {names[0]} to {name}")
    return [found[host] for host in range(len(rails))]


def _level(subnet: Subnet, hosts: list[int], digits: list[Digits], sizes: Digits) -> int:
    """The level on which the hosts of the subnet differ, if they differ on that one only."""
    differ = [
        level for level in range(len(sizes)) if len({digits[host][level] for host in hosts}) > 1
    ]
    if len(differ) != 1 or len(hosts) != sizes[differ[0]]:
        raise NoGridError(f"the {len(hosts)} hosts of {subnet} are no line of a grid")
    return differ[0]


def _shape(sizes: Digits) -> str:
    return " x ".join(map(str, sizes))
