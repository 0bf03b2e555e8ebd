"""`discover`: what all ranks conclude from the facts that all of them have published.

The engine takes a plan: the sizes of the grid, the number of each rank's host, and each rank's
rails in the order of levels. On a flat network rail l of every host is in the same subnet where
there is one subnet per rail; else rails go by their configured order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dmlcomm.bml.facts import Facts, Rail, Subnet
from dmlcomm.bml.hosts import Host, Layout, Rails, by_host, differing_rank
from dmlcomm.bml.recovery import NoGridError, find_grid
from dmlcomm.bml.specification import Network, TopologyError
from dmlcomm.bml.validation import fit


@dataclass(frozen=True)
class Plan:
    """The same on all ranks.

    Attributes:
        grid: sizes, level 0 first; empty for a flat network.
        host_of_rank: number of each rank's host: on a grid its place there, else in order of
            first ranks.
        interfaces_of_rank: names of each rank's rails, the one on level 0 first.
        reason: how the plan came about, for the log.
        choices: algorithms by operation and size, from a plan file; empty: the cost model's.
        warnings: (the rank that should say it, text).
    """

    grid: tuple[int, ...]
    host_of_rank: tuple[int, ...]
    interfaces_of_rank: tuple[tuple[str, ...], ...]
    reason: str
    warnings: tuple[tuple[int, str], ...] = ()
    choices: str = ""


def discover(facts: Sequence[Facts], network: Network, is_whole_job: bool) -> Plan:
    """How the hosts of a group are connected.

    Args:
        facts: of every rank of the group.
        network: what the user says. A grid is demanded of the whole job only: the hosts of other
            groups are taken as they are, as ``auto`` does.
        is_whole_job: whether the group is all ranks.

    Raises:
        TopologyError: the network is not the grid that the user says, naming the cables.
    """
    hosts = by_host(facts)
    is_demanded = network.is_grid and is_whole_job
    for host in hosts:
        rank = differing_rank(host, facts)
        if rank is None:
            continue
        reason = f"ranks {host.ranks[0]} and {rank} of {host.name} have chosen different interfaces"
        if is_demanded:
            raise TopologyError(f"{network.source}: {reason}; set DMLCOMM_SOCKET_IFNAME alike")
        return _by_index(facts, hosts, reason)
    if is_demanded:
        return _on_grid(hosts, fit(hosts, network), len(facts), f"{network} as configured")
    if len(hosts) == 1:
        return _by_index(facts, hosts, "one host")
    return _found(facts, hosts, network)


def _found(facts: Sequence[Facts], hosts: list[Host], network: Network) -> Plan:
    """What the subnets show: with the rails that have carrier, or else with all."""
    may_be_grid = network.sizes != ()
    reason = ""
    lit = [tuple(rail for rail in host.rails if rail.has_carrier) for host in hosts]
    every = [host.rails for host in hosts]
    for rails in [lit] if lit == every else [lit, every]:
        matched = _matched(rails)
        if matched is not None:
            return _flat(hosts, matched, len(facts), "every subnet has all hosts")
        if not may_be_grid:
            reason = "the hosts are in different subnets, rails go by their order"
            continue
        try:
            layout = find_grid([host.name for host in hosts], rails)
        except NoGridError as error:
            reason = reason or f"no grid: {error}"
        else:
            return _on_grid(hosts, layout, len(facts), "found from the subnets")
    return _by_index(facts, hosts, reason)


def _matched(rails: Sequence[Rails]) -> list[Rails] | None:
    """Every host's rails in the order of the first host's subnets, if all have the same ones."""
    order = [rail.subnet for rail in rails[0]]
    matched = []
    for own in rails:
        of_subnet: dict[Subnet, list[Rail]] = {}
        for rail in own:
            of_subnet.setdefault(rail.subnet, []).append(rail)
        if len(own) != len(order):
            return None
        if any(len(of_subnet.get(subnet, ())) != order.count(subnet) for subnet in order):
            return None
        matched.append(tuple(of_subnet[subnet].pop(0) for subnet in order))
    return matched


def _on_grid(hosts: list[Host], layout: Layout, num_ranks: int, reason: str) -> Plan:
    """A grid of one level is a flat network."""
    if len(layout.sizes) == 1:
        return _flat(hosts, layout.rails, num_ranks, reason)
    return _plan(hosts, layout.rails, num_ranks, layout.sizes, layout.numbers, reason)


def _flat(hosts: list[Host], rails: Sequence[Rails], num_ranks: int, reason: str) -> Plan:
    return _plan(hosts, rails, num_ranks, (), range(len(hosts)), reason)


def _plan(
    hosts: list[Host],
    rails: Sequence[Rails],
    num_ranks: int,
    sizes: tuple[int, ...],
    numbers: Sequence[int],
    reason: str,
) -> Plan:
    host_of_rank = [0] * num_ranks
    interfaces_of_rank: list[tuple[str, ...]] = [()] * num_ranks
    warnings = []
    for host, own, number in zip(hosts, rails, numbers, strict=True):
        for rank in host.ranks:
            host_of_rank[rank] = number
            interfaces_of_rank[rank] = tuple(rail.interface for rail in own)
        warnings += [
            (host.ranks[0], f"rail {level} of {host.name}, {rail}, has no carrier: is it plugged?")
            for level, rail in enumerate(own)
            if not rail.has_carrier
        ]
    return Plan(sizes, tuple(host_of_rank), tuple(interfaces_of_rank), reason, tuple(warnings))


def _by_index(facts: Sequence[Facts], hosts: list[Host], reason: str) -> Plan:
    """Every rank has the rails that it has chosen and that have carrier, in their order."""
    host_of_rank = {rank: number for number, host in enumerate(hosts) for rank in host.ranks}
    return Plan(
        grid=(),
        host_of_rank=tuple(host_of_rank[rank] for rank in range(len(facts))),
        interfaces_of_rank=tuple(
            tuple(rail.interface for rail in fact.rails if rail.has_carrier) for fact in facts
        ),
        reason=reason,
    )
