"""The ranks' facts, by host and by subnet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dmlcomm.bml.facts import Facts, Rail, Subnet

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


def by_host(facts: Sequence[Facts]) -> list[Host]:
    """The hosts, in the order of their first ranks."""
    ranks_of: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        ranks_of.setdefault(fact.host_id, []).append(rank)
    return [
        Host(facts[ranks[0]].host_name, tuple(ranks), facts[ranks[0]].rails)
        for ranks in ranks_of.values()
    ]


def differing_rank(host: Host, facts: Sequence[Facts]) -> int | None:
    """A rank of the host that has chosen other interfaces than its first one."""
    chosen = {(rail.interface, rail.address) for rail in host.rails}
    for rank in host.ranks:
        if {(rail.interface, rail.address) for rail in facts[rank].rails} != chosen:
            return rank
    return None


def members(rails: Iterable[Rails]) -> dict[Subnet, list[int]]:
    """The hosts of each subnet, by number; a host with two rails in one is there twice."""
    found: dict[Subnet, list[int]] = {}
    for host, own in enumerate(rails):
        for rail in own:
            found.setdefault(rail.subnet, []).append(host)
    return found
