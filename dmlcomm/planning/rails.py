"""What the rails of a running cluster show: a short measured run, and its figures by rail.

Rails learn their rates and round trips from what a job sends (docs/architecture/transport.md,
"Rates"). Here all ranks send large vectors to each other for a few seconds, and every host says
what its rails have shown.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dmlcomm import _c10d, _core
from dmlcomm.rail import Rail, RailCounters

# all_reduces grow from the least size until all of one size take so long, or have the greatest
# size; that size is repeated. One may take long because connections are made, or for want of a
# core. Small ones show too much: what NICs that are limited save up while they are idle leaves at
# once.
LEAST_BYTES = 64 << 10
MOST_BYTES = 32 << 20
LONG_S = 0.2
REPETITIONS = 5
TRIES = 2
GROWTH = 4


@dataclass(frozen=True)
class HostRail:
    """A rail of one host, as its ranks together have used it.

    Attributes:
        driver_bps: as the NIC's driver says; None if it does not.
        shown_bps: what it has carried; 0 if that is not known.
        round_trip_us: the shortest one; 0 if that is not known.
        bytes_resent: by TCP.
    """

    host: str
    interface: str
    driver_bps: float | None
    shown_bps: float
    round_trip_us: float
    bytes_resent: int


@dataclass(frozen=True)
class ShownRail:
    """A rail (a level of a grid) on all hosts.

    Attributes:
        number: from 0.
        hosts: one entry for each.
        message_s: what a message costs beside its bytes, between rank 0 and its neighbour; None
            where it was not measured.
    """

    number: int
    hosts: tuple[HostRail, ...]
    message_s: float | None = None

    @property
    def interfaces(self) -> list[str]:
        return sorted({host.interface for host in self.hosts})

    @property
    def slowest(self) -> HostRail:
        """Of the hosts whose rate is known, if there is one."""
        return min(self.hosts, key=lambda host: host.shown_bps or float("inf"))

    @property
    def fastest(self) -> HostRail:
        return max(self.hosts, key=lambda host: host.shown_bps)

    @property
    def driver_bps(self) -> float | None:
        """Of the host where it is least; None if a driver says none."""
        told = [host.driver_bps for host in self.hosts if host.driver_bps]
        return min(told) if len(told) == len(self.hosts) else None

    @property
    def round_trip_us(self) -> float:
        return max(host.round_trip_us for host in self.hosts)

    @property
    def bytes_resent(self) -> int:
        return sum(host.bytes_resent for host in self.hosts)


def show_rails(own: Sequence[Rail], num_rails: int) -> tuple[ShownRail, ...]:
    """The measured run, and the figures of all hosts on every rank; collective.

    Args:
        own: of `nic.select_candidates`, for what the drivers say.
        num_rails: of each host; those beyond are spares.
    """
    _exercise()
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, (_core.host_id(), _own_figures(own, num_rails)))
    by_host: dict[str, list[list[HostRail]]] = {}
    for host, rails in everybody:
        by_host.setdefault(host, []).append(rails)
    return tuple(
        ShownRail(
            number, tuple(_of_host([rank[number] for rank in ranks]) for ranks in by_host.values())
        )
        for number in range(num_rails)
    )


def _exercise() -> None:
    num_bytes = LEAST_BYTES
    while num_bytes < MOST_BYTES and min(_all_reduce_s(num_bytes) for _ in range(TRIES)) < LONG_S:
        num_bytes = min(GROWTH * num_bytes, MOST_BYTES)
    for _ in range(REPETITIONS):
        _all_reduce_s(num_bytes)


def _all_reduce_s(num_bytes: int) -> float:
    """The same on all ranks: of the slowest one."""
    vector = torch.zeros(num_bytes // 4)
    begin = time.perf_counter()
    dist.all_reduce(vector)
    seconds = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def _own_figures(own: Sequence[Rail], num_rails: int) -> list[HostRail]:
    speeds = {rail.interface: rail.speed_mbps for rail in own}
    found = []
    for rail in _counters()[:num_rails]:
        speed_mbps = speeds.get(rail.interface)
        driver_bps = speed_mbps * 1e6 if speed_mbps else None
        found.append(
            HostRail(
                *(_core.host_name(), rail.interface, driver_bps),
                *(rail.bits_per_second, rail.round_trip_us, rail.bytes_resent),
            )
        )
    return found


def _counters() -> list[RailCounters]:
    """As `dmlcomm.rails`, which is a layer above."""
    backend: Any = c10d._get_default_group()._get_backend(torch.device("cpu"))
    return [RailCounters(**counters) for counters in _c10d.rails(backend)]


def _of_host(ranks: Sequence[HostRail]) -> HostRail:
    """The ranks of a host share its rails, and each of them shows its part of the rate."""
    known = [rank.shown_bps for rank in ranks if rank.shown_bps]
    shown_bps = len(ranks) * sum(known) / len(known) if known else 0
    trips = [rank.round_trip_us for rank in ranks if rank.round_trip_us]
    first = ranks[0]
    return HostRail(
        *(first.host, first.interface, first.driver_bps, shown_bps, min(trips, default=0)),
        sum(rank.bytes_resent for rank in ranks),
    )
