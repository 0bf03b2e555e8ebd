"""The rates of rails, as far as all ranks can tell."""

from collections.abc import Sequence

from dmlcomm.bml.specification import Network
from dmlcomm.network.facts import Facts


def of_rails(
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
