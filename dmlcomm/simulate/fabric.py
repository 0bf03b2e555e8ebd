"""The network of a scenario as links: what each NIC and each rank's memory carries."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dmlcomm.planning.network import PlannedNetwork

Hop = tuple[int, int, int | None]


@dataclass(frozen=True)
class Nic:
    """A NIC, or all NICs of a host on a flat network, which carry each message together.

    Attributes:
        rails: the NICs of the host that belong to it.
    """

    host: int
    rails: tuple[int, ...]


class Fabric:
    """Links by number: of each NIC what it sends and what it receives, then each rank's memory.

    Attributes:
        capacities: by link, in bits of data per second, without headers.
    """

    def __init__(self, network: PlannedNetwork) -> None:
        self.network = network
        self._core = network.core()
        all_rails = tuple(range(len(network.rates_bps)))
        rails = [(rail,) for rail in all_rails] if network.sizes else [all_rails]
        self.nics = [Nic(host, some) for host in range(network.num_hosts) for some in rails]
        self._nic_of = {
            (nic.host, rail): index for index, nic in enumerate(self.nics) for rail in nic.rails
        }
        self.capacities: list[float] = []
        for nic in self.nics:
            rate = sum(network.rates_bps[rail] for rail in nic.rails) * network.efficiency
            self.capacities += [rate, rate]
        self._first_memory = len(self.capacities)
        self.capacities += [self._core.memory_bps] * (2 * network.num_ranks)

    def nic_index(self, host: int, rail: int) -> int:
        """The place in ``nics`` of a host's NIC."""
        return self._nic_of[host, rail]

    def out_link(self, nic: int) -> int:
        """What a NIC sends."""
        return 2 * nic

    def in_link(self, nic: int) -> int:
        """What a NIC receives."""
        return 2 * nic + 1

    def path(self, hops: Iterable[Hop], sender: int, receiver: int) -> list[int]:
        """The links of a message between two ranks; without hops, inside a host."""
        found = []
        for from_host, to_host, rail in hops:
            found.append(self.out_link(self.nic_index(from_host, rail or 0)))
            found.append(self.in_link(self.nic_index(to_host, rail or 0)))
        return found or list(self._memory(sender, receiver))

    def _memory(self, sender: int, receiver: int) -> Iterator[int]:
        yield self._first_memory + 2 * receiver + 1
        if not self._core.single_copy:
            yield self._first_memory + 2 * sender
