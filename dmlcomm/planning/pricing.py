"""Predicted times, bounds, and the choice."""

from dataclasses import dataclass

from dmlcomm import _core
from dmlcomm.planning.network import PlannedNetwork

# An algorithm displaces an earlier one of the table only if it is this much cheaper, as in the job.
CLEARLY_CHEAPER = 0.99

# Operations whose size every rank knows, so that a plan may choose by it.
SIZED_OPERATIONS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")

# Plan files choose at powers of two up to this.
MOST_PLANNED_BYTES = 1 << 30


@dataclass(frozen=True)
class Choice:
    """What every algorithm takes, and the one to use.

    Attributes:
        bound_s: the least time that the hosts' NICs allow, without headers; 0 where nothing has to
            be sent.
    """

    prices: list[_core.Price]
    chosen: _core.Price
    bound_s: float

    @property
    def reason(self) -> str:
        """Why this algorithm: how far the next one is."""
        others = [price for price in self.prices if price is not self.chosen]
        if not others:
            return "the only one that applies"
        second = min(others, key=lambda price: price.seconds)
        more = second.seconds / self.chosen.seconds - 1
        if more < 1 / CLEARLY_CHEAPER - 1:
            return f"as fast as {second.name} within 1 %, and earlier in the table"
        return f"the least time; {second.name}, the next, takes {more:.1%} more"


def choose(
    network: PlannedNetwork,
    topology: _core.Topology,
    op: str,
    num_bytes: int,
    element_bytes: int = 4,
) -> Choice:
    """Prices ``op``. ``num_bytes``: see `bound_s`. Raises ValueError for an unknown operation."""
    prices = _core.price(topology, op, num_bytes, element_bytes)
    chosen = prices[0]
    for price in prices[1:]:
        if price.seconds < CLEARLY_CHEAPER * chosen.seconds:
            chosen = price
    return Choice(prices, chosen, bound_s(network, op, num_bytes))


def bound_s(network: PlannedNetwork, op: str, num_bytes: int) -> float:
    """What the NICs of one host need for the bytes that it must send or receive, in seconds.

    ``num_bytes`` are those of the vector (all_reduce, reduce, broadcast), of all ranks' pieces
    together (all_gather, gather, scatter, reduce_scatter), or of one rank's input (all_to_all).
    Rates of all rails add up; headers are not counted. For all_reduce with N hosts and k equal
    rails that is 2 (N - 1) / (k N) S / rate.
    """
    hosts = network.num_hosts
    others = (hosts - 1) / hosts
    shares = {
        "all_reduce": 2 * others,
        "all_to_all": network.ranks_per_host * others,
        "reduce": 1.0,
        "broadcast": 1.0,
        "barrier": 0.0,
    }
    share = shares.get(op, others) if hosts > 1 else 0.0
    return share * num_bytes * 8 / sum(network.rates_bps)


def size_ranges(
    network: PlannedNetwork, topology: _core.Topology, op: str, element_bytes: int = 4
) -> dict[int, str]:
    """First bytes -> the algorithm to use from there on, for sizes up to `MOST_PLANNED_BYTES`."""
    ranges: dict[int, str] = {}
    last = ""
    size = 1 << 10
    while size <= MOST_PLANNED_BYTES:
        name = choose(network, topology, op, size, element_bytes).chosen.name
        if name != last:
            ranges[size if ranges else 0] = last = name
        size *= 2
    return ranges
