"""The network of a scenario as links: what NICs, ranks' memories and switches carry."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dmlcomm.planning.network import PlannedNetwork
from dmlcomm.simulate.psnet import Psnet
from dmlcomm.simulate.sip import Sip
from dmlcomm.simulate.trunks import Trunks

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
    """Links by number: of each NIC what it sends and what it receives, then each rank's memory,
    then trunks.

    Attributes:
        capacities: by link, in bits of data per second, without headers.
    """

    def __init__(
        self,
        network: PlannedNetwork,
        trunks: Trunks | Sip | None = None,
        psnet: Psnet | None = None,
    ) -> None:
        self.network = network
        self._trunks = trunks
        self._psnet = psnet
        above = trunks or psnet
        self.trunks = [] if above is None else above.trunks
        self._core = network.core()
        all_rails = tuple(range(len(network.rates_bps)))
        rails = [(rail,) for rail in all_rails] if network.sizes else [all_rails]
        self.nics = [Nic(host, some) for host in range(network.num_hosts) for some in rails]
        if psnet is not None:
            self.nics = [
                Nic(host, (rail,))
                for host, rates in enumerate(psnet.nics)
                for rail in range(len(rates))
            ]
        self._nic_of = {
            (nic.host, rail): index for index, nic in enumerate(self.nics) for rail in nic.rails
        }
        self.capacities: list[float] = []
        for nic in self.nics:
            rate = sum(self.rate_bps(nic.host, rail) for rail in nic.rails) * network.efficiency
            self.capacities += [rate, rate]
        self._first_memory = len(self.capacities)
        self.capacities += [self._core.memory_bps] * (2 * network.num_ranks)
        self._first_trunk = len(self.capacities)
        self.capacities += [trunk.rate_bps * network.efficiency for trunk in self.trunks]

    def nic_index(self, host: int, rail: int) -> int:
        """The place in ``nics`` of a host's NIC."""
        return self._nic_of[host, rail]

    def rate_bps(self, host: int, rail: int) -> float:
        """Of a NIC at first, of whole Ethernet frames."""
        return self.network.rates_bps[rail] if self._psnet is None else self._psnet.nics[host][rail]

    def out_link(self, nic: int) -> int:
        """What a NIC sends."""
        return 2 * nic

    def in_link(self, nic: int) -> int:
        """What a NIC receives."""
        return 2 * nic + 1

    def rack_of(self, host: int) -> int:
        """The number of the switch that a host is at; a network without trunks is one rack."""
        above = self._trunks or self._psnet
        return 0 if above is None else above.rack_of(host)

    def trunk_link(self, trunk: int) -> int:
        """What a trunk carries, by its place in ``trunks``."""
        return self._first_trunk + trunk

    def move(self, circuits: Mapping[str, str]) -> list[int]:
        """Moves circuits of a sip or psnet, and gives the links of those above ToRs."""
        above = self._trunks or self._psnet
        assert isinstance(above, Sip | Psnet)
        above.move(circuits)
        if isinstance(above, Psnet):
            return []
        return [self.trunk_link(trunk) for place in circuits for trunk in above.trunks_of(place)]

    def path(
        self, hops: Iterable[Hop], sender: int, receiver: int, connection: Sequence[int]
    ) -> list[int]:
        """The links of a message between two ranks; without hops, inside a host.

        Args:
            connection: numbers that tell it from others of the two ranks.
        """
        found = []
        for from_host, to_host, rail in hops:
            if self._psnet is not None:
                leaves, passed, arrives = self._psnet.way(from_host, to_host)
                found.append(self.out_link(self.nic_index(from_host, leaves)))
                found += [self.trunk_link(trunk) for trunk in passed]
                found.append(self.in_link(self.nic_index(to_host, arrives)))
                continue
            found.append(self.out_link(self.nic_index(from_host, rail or 0)))
            if self._trunks is not None:
                passed = self._trunks.between(from_host, to_host, (*connection, sender, receiver))
                found += [self.trunk_link(trunk) for trunk in passed]
            found.append(self.in_link(self.nic_index(to_host, rail or 0)))
        return found or list(self._memory(sender, receiver))

    def _memory(self, sender: int, receiver: int) -> Iterator[int]:
        yield self._first_memory + 2 * receiver + 1
        if not self._core.single_copy:
            yield self._first_memory + 2 * sender
