"""Compares a grid that the user asked for with the subnets of the hosts.

Each host gets a number: the one that the file gives it, else its place in the order of first
ranks. Rail l of a host has to be in the subnet of exactly those hosts that differ from it in
digit l. The subnets tell which of a host's rails that is, unless the file names it; rails
beyond the levels (a management network) are left out. If hosts are not named and do not fit in
their order, an order in which they do is looked for.

Errors are stated per cable: level, switch, host, interface, address.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from dmlcomm.bml import grid
from dmlcomm.bml.hosts import Host, Layout, members
from dmlcomm.bml.recovery import NoGridError, find_grid
from dmlcomm.bml.specification import Network, TopologyError
from dmlcomm.rail import Rail, Subnet

# Cables that one error names: one that is missing shows on few lines, a wrong setting on all.
MAX_PROBLEMS = 4

# A rail for each level, level 0 first; None where the host has none.
Assignment = tuple[Rail | None, ...]


def fit(hosts: Sequence[Host], network: Network) -> Layout:
    """The hosts on the grid that ``network`` describes. Raises TopologyError."""
    expected = grid.num_hosts(network.sizes or ())
    if len(hosts) != expected:
        raise TopologyError(
            f"{network.source}: {network} has {expected} hosts, but the ranks are on {len(hosts)}: "
            f"{_list(host.name for host in hosts)}; start ranks on all hosts of the grid, or set "
            "the topology of those that take part (auto finds it)"
        )
    attempt = _Attempt(hosts, network)
    problems = list(attempt.problems())
    if not problems:
        return attempt.layout()
    found = None if network.hosts else _in_another_order(hosts, network)
    if found is None:
        raise TopologyError(_describe(problems, network))
    return found


class _Attempt:
    """The hosts at the numbers that they have been given."""

    def __init__(self, hosts: Sequence[Host], network: Network) -> None:
        self.hosts = hosts
        self.sizes = network.sizes or ()
        self.numbers = _numbers(hosts, network)
        self.host_at = {number: host for host, number in enumerate(self.numbers)}
        self.members = members(host.rails for host in hosts)
        self.assigned = [
            _named(host, network) if network.interfaces else self._best(number)
            for number, host in enumerate(hosts)
        ]

    def layout(self) -> Layout:
        rails = tuple(tuple(r for r in own if r is not None) for own in self.assigned)
        return Layout(self.sizes, self.numbers, rails)

    def _line(self, host: int, level: int) -> list[int]:
        """The hosts that should be at the same switch, by port."""
        return [self.host_at[n] for n in grid.line(self.numbers[host], level, self.sizes)]

    def _best(self, host: int) -> Assignment:
        """Each level gets the rail whose subnet has the most hosts of its line and fewest others.

        The configured order decides between equally good ones.
        """
        scores = []
        for level in range(len(self.sizes)):
            line = set(self._line(host, level))
            for index, rail in enumerate(self.hosts[host].rails):
                shared = set(self.members[rail.subnet])
                score = len(shared & line) - len(shared - line)
                scores.append((-score, index != level, index, level))
        assigned: dict[int, int] = {}
        for _, _, index, level in sorted(scores):
            if level not in assigned and index not in assigned.values():
                assigned[level] = index
        rails = self.hosts[host].rails
        return tuple(
            rails[assigned[level]] if level in assigned else None
            for level in range(len(self.sizes))
        )

    def problems(self) -> Iterator[str]:
        """One text per cable that is not where it should be."""
        switch_of: dict[Subnet, str] = {}
        for level in range(len(self.sizes)):
            for number in range(len(self.hosts)):
                line = grid.line(number, level, self.sizes)
                if number != line[0]:
                    continue
                switch = f"{level}.{grid.switch_of(number, level, self.sizes)}"
                hosts = [self.host_at[n] for n in line]
                subnet = self._subnet(hosts, level)
                for host in hosts:
                    yield from self._problems_of(host, level, switch, hosts, subnet)
                if subnet in switch_of:
                    yield (
                        f"level {level}, switch {switch}: expected a subnet of its own; found "
                        f"{subnet} (at {self._end(hosts[0], level)}), as at switch "
                        f"{switch_of[subnet]}"
                    )
                elif subnet is not None:
                    switch_of[subnet] = switch

    def _subnet(self, hosts: list[int], level: int) -> Subnet | None:
        """The subnet of most rails at the switch; of equally frequent ones, that of the first."""
        rails = [self.assigned[host][level] for host in hosts]
        counts = Counter(rail.subnet for rail in rails if rail is not None)
        return counts.most_common(1)[0][0] if counts else None

    def _problems_of(
        self, host: int, level: int, switch: str, hosts: list[int], subnet: Subnet | None
    ) -> Iterator[str]:
        rail = self.assigned[host][level]
        place = f"level {level}, switch {switch}: {self._name(host)}"
        if rail is None:
            has = _list(map(str, self.hosts[host].rails)) or "none"
            yield f"{place} has no interface for this level: its interfaces are {has}"
        elif rail.subnet != subnet:
            others = _list(self._end(other, level) for other in hosts if other != host)
            sharing = sorted(set(self.members[rail.subnet]) - {host})
            found = _list(self.hosts[other].name for other in sharing) or "no other host"
            yield (
                f"{place}: expected {rail} in the subnet {subnet} with {others}; "
                f"found in {rail.subnet}, with {found}"
            )
        elif self.members[subnet].count(host) > 1:
            yield f"{place} has several interfaces in the subnet {subnet}, expected one"

    def _name(self, host: int) -> str:
        digits = grid.to_digits(self.numbers[host], self.sizes)
        return f"{self.hosts[host].name} (digits {', '.join(map(str, digits))})"

    def _end(self, host: int, level: int) -> str:
        return f"{self.hosts[host].name}'s {self.assigned[host][level] or 'missing interface'}"


def _numbers(hosts: Sequence[Host], network: Network) -> tuple[int, ...]:
    if not network.hosts:
        return tuple(range(len(hosts)))
    given: dict[int, str] = {}
    for host in hosts:
        number = network.number_of(host.name)
        if number is None:
            raise TopologyError(
                f"{network.source}: the host {host.name} is not among the hosts of the file: "
                f"{_list(network.hosts)}"
            )
        if number in given:
            raise TopologyError(
                f"{network.source}: two hosts have the name {network.hosts[number]}; give them "
                "different names, or leave hosts out of the file"
            )
        given[number] = host.name
    return tuple(given)


def _named(host: Host, network: Network) -> Assignment:
    rail_of = {rail.interface: rail for rail in host.rails}
    return tuple(rail_of.get(name) for name in network.interfaces)


def _in_another_order(hosts: Sequence[Host], network: Network) -> Layout | None:
    """The hosts on a grid of the same sizes, in any order; None if they form no such grid."""
    shared = {s for s, h in members(host.rails for host in hosts).items() if len(h) == len(hosts)}
    own = [
        tuple(rail for rail in host.rails if _may_lead(rail, host, shared, network))
        for host in hosts
    ]
    try:
        found = find_grid([host.name for host in hosts], own)
    except NoGridError:
        return None
    levels = _matching_levels(found, network)
    if levels is None:
        return None
    layout = Layout(
        tuple(found.sizes[level] for level in levels),
        tuple(_permuted(number, found.sizes, levels) for number in found.numbers),
        tuple(tuple(rails[level] for level in levels) for rails in found.rails),
    )
    names = [tuple(rail.interface for rail in rails) for rails in layout.rails]
    fits = not network.interfaces or all(own == network.interfaces for own in names)
    return layout if fits else None


def _may_lead(rail: Rail, host: Host, shared: set[Subnet], network: Network) -> bool:
    """Whether it can be a rail of the grid: a subnet of all hosts is none, if there are enough."""
    if network.interfaces:
        return rail.interface in network.interfaces
    return len(host.rails) == network.num_levels or rail.subnet not in shared


def _matching_levels(found: Layout, network: Network) -> list[int] | None:
    """For each level of the network, the level that was found for it."""
    levels: list[int] = []
    for level, size in enumerate(network.sizes or ()):
        candidates = [
            candidate
            for candidate, found_size in enumerate(found.sizes)
            if candidate not in levels
            and found_size == size
            and (
                not network.interfaces
                or found.rails[0][candidate].interface == network.interfaces[level]
            )
        ]
        if not candidates:
            return None
        levels.append(candidates[0])
    return levels if len(levels) == len(found.sizes) else None


def _permuted(number: int, sizes: Sequence[int], levels: Sequence[int]) -> int:
    """The number of a host after its levels have been put into another order."""
    digits = grid.to_digits(number, sizes)
    return grid.from_digits([digits[level] for level in levels], [sizes[level] for level in levels])


def _describe(problems: list[str], network: Network) -> str:
    shown = "; ".join(problems[:MAX_PROBLEMS])
    more = len(problems) - MAX_PROBLEMS
    order = "" if network.hosts else " (hosts were taken in the order of their first ranks)"
    return (
        f"{network.source}: the network is not {network}{order}: {shown}"
        + (f"; and {more} more" if more > 0 else "")
        + "; check these cables and addresses, the interfaces in DMLCOMM_SOCKET_IFNAME, and "
        "`dmlcomm doctor` on the hosts"
    )


def _list(texts: Iterator[str] | Sequence[str]) -> str:
    """A comma list; a long one is cut."""
    all_texts = list(texts)
    shown = ", ".join(all_texts[:8])
    return shown + (f", ... ({len(all_texts)} in all)" if len(all_texts) > 8 else "")
