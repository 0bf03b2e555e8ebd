"""`discover`: what all ranks conclude from the facts that all of them have published.

The engine takes this map: the sizes of the grid, the number of each rank's host, and each rank's
rails in the order of levels. On a flat network rail l of every host is in the same subnet where
there is one subnet per rail; else rails go by their configured order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dmlcomm.bml.hosts import Host, Layout, Rails, members
from dmlcomm.bml.recovery import NoGridError, find_grid
from dmlcomm.bml.specification import Network, TopologyError
from dmlcomm.bml.validation import fit
from dmlcomm.network.facts import Facts, by_host, differing_rank
from dmlcomm.rail import Rail, Subnet


@dataclass(frozen=True)
class NetworkMap:
    """The same on all ranks.

    Attributes:
        grid: sizes, level 0 first; empty for a flat network.
        host_of_rank: number of each rank's host: on a grid its place there, else in order of
            first ranks.
        interfaces_of_rank: names of each rank's rails, the one on level 0 first; those that are
            on no level of the grid, and only spares, last.
        reason: how the map came about, for the log.
        rates_bps: bits per second of each rail, of the host that is slowest there; empty if one is
            not known.
        warnings: (the rank that should say it, text).
    """

    grid: tuple[int, ...]
    host_of_rank: tuple[int, ...]
    interfaces_of_rank: tuple[tuple[str, ...], ...]
    reason: str
    warnings: tuple[tuple[int, str], ...] = ()
    rates_bps: tuple[int, ...] = ()

    @property
    def shape(self) -> str:
        return "grid " + " x ".join(map(str, self.grid)) if self.grid else "flat"


def discover(
    facts: Sequence[Facts], network: Network, is_whole_job: bool, job_is_grid: bool = False
) -> NetworkMap:
    """How the hosts of a group are connected.

    Args:
        facts: of every rank of the group.
        network: what the user says. A grid is demanded of the whole job only: the hosts of other
            groups are taken as they are, as ``auto`` does.
        is_whole_job: whether the group is all ranks.
        job_is_grid: whether the network of all ranks is known to be a grid. The network of a part
            of them is then a part of it.

    Raises:
        TopologyError: the network is not the grid that the user says, naming the cables.
    """
    found = _connected(facts, network, is_whole_job, job_is_grid)
    rates = _rates(facts, found.interfaces_of_rank, network, is_whole_job)
    return replace(found, rates_bps=rates)


def _connected(
    facts: Sequence[Facts], network: Network, is_whole_job: bool, job_is_grid: bool
) -> NetworkMap:
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
    is_part = not is_whole_job and (network.is_grid or job_is_grid)
    return _found(facts, hosts, network.sizes != (), is_part)


def _found(
    facts: Sequence[Facts], hosts: list[Host], may_be_grid: bool, is_part: bool
) -> NetworkMap:
    """The network that the subnets show: with the rails that have carrier, or else with all."""
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
            layout = _part_of_grid(hosts, rails) if is_part else find_grid(_names(hosts), rails)
        except NoGridError as error:
            reason = reason or f"no grid: {error}"
        else:
            return _on_grid(hosts, layout, len(facts), "found from the subnets")
    return _by_index(facts, hosts, reason)


def _names(hosts: Sequence[Host]) -> list[str]:
    return [host.name for host in hosts]


def _part_of_grid(hosts: Sequence[Host], rails: Sequence[Rails]) -> Layout:
    """The levels on which the hosts of a group differ, if they are a grid by themselves.

    Their rails on other levels lead to none of them, but through hosts in between: these come
    behind the levels, and are used when a cable is dead. Raises NoGridError.
    """
    in_subnet = members(rails)
    shared = [tuple(rail for rail in own if len(in_subnet[rail.subnet]) > 1) for own in rails]
    layout = find_grid(_names(hosts), shared)
    with_spares = [
        (*levels, *(rail for rail in own if rail not in levels))
        for levels, own in zip(layout.rails, rails, strict=True)
    ]
    return replace(layout, rails=tuple(with_spares))


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


def _on_grid(hosts: list[Host], layout: Layout, num_ranks: int, reason: str) -> NetworkMap:
    """A grid of one level is a flat network, unless there are rails that lead elsewhere."""
    if len(layout.sizes) == 1 and all(len(own) == 1 for own in layout.rails):
        return _flat(hosts, layout.rails, num_ranks, reason)
    return _map(hosts, layout.rails, num_ranks, layout.sizes, layout.numbers, reason)


def _flat(hosts: list[Host], rails: Sequence[Rails], num_ranks: int, reason: str) -> NetworkMap:
    return _map(hosts, rails, num_ranks, (), range(len(hosts)), reason)


def _map(
    hosts: list[Host],
    rails: Sequence[Rails],
    num_ranks: int,
    sizes: tuple[int, ...],
    numbers: Sequence[int],
    reason: str,
) -> NetworkMap:
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
    return NetworkMap(
        sizes, tuple(host_of_rank), tuple(interfaces_of_rank), reason, tuple(warnings)
    )


def _by_index(facts: Sequence[Facts], hosts: list[Host], reason: str) -> NetworkMap:
    """Every rank has the rails that it has chosen and that have carrier, in their order."""
    host_of_rank = {rank: number for number, host in enumerate(hosts) for rank in host.ranks}
    return NetworkMap(
        grid=(),
        host_of_rank=tuple(host_of_rank[rank] for rank in range(len(facts))),
        interfaces_of_rank=tuple(
            tuple(rail.interface for rail in fact.rails if rail.has_carrier) for fact in facts
        ),
        reason=reason,
    )


def _rates(
    facts: Sequence[Facts],
    interfaces_of_rank: Sequence[Sequence[str]],
    network: Network,
    is_whole_job: bool,
) -> tuple[int, ...]:
    """Bits per second of each rail, of the host that is slowest there; () if one is not known.

    What the user says comes first, since a NIC only knows what it has agreed on with its switch.
    The rails of a part of the job may be any of the levels: there the slowest one counts for all.
    """
    num_rails = {len(names) for names in interfaces_of_rank}
    if len(num_rails) != 1 or num_rails == {0}:
        return ()
    (count,) = num_rails
    told = network.rates_bps
    if told:
        return told if is_whole_job and len(told) == count else (min(told),) * count
    speeds = [
        [
            _speed_mbps(fact, names[rail])
            for fact, names in zip(facts, interfaces_of_rank, strict=True)
        ]
        for rail in range(count)
    ]
    if not all(speed for of_rail in speeds for speed in of_rail):
        return ()
    return tuple(10**6 * min(of_rail) for of_rail in speeds)


def _speed_mbps(fact: Facts, interface: str) -> int:
    """As the NIC's driver says; 0 if it does not."""
    return next((rail.speed_mbps or 0 for rail in fact.rails if rail.interface == interface), 0)
