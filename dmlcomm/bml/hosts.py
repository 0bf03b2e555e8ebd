"""Hosts with their rails, and hosts on a grid: which rail is on which level."""

from collections.abc import Iterable
from dataclasses import dataclass

from dmlcomm.rail import Rail, Subnet

Rails = tuple[Rail, ...]


@dataclass(frozen=True)
class Host:
    """The ranks of one host, and the rails that its first rank has."""

    name: str
    ranks: tuple[int, ...]
    rails: Rails


@dataclass(frozen=True)
class Layout:
    """Hosts on a grid.

    Attributes:
        sizes: level 0 first.
        numbers: for each host, in order of appearance, its number in the grid.
        rails: for each host, in order of appearance, its rails: the one on level 0 first.
    """

    sizes: tuple[int, ...]
    numbers: tuple[int, ...]
    rails: tuple[Rails, ...]


def members(rails: Iterable[Rails]) -> dict[Subnet, list[int]]:
    """The hosts of each subnet, by number; a host with two rails in one is there twice."""
    found: dict[Subnet, list[int]] = {}
    for host, own in enumerate(rails):
        for rail in own:
            found.setdefault(rail.subnet, []).append(host)
    return found
