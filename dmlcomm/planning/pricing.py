"""Predicted times, bounds, and the choice."""

from dataclasses import dataclass

from dmlcomm import _core
from dmlcomm.planning.network import PlannedNetwork

# Operations whose size every rank knows, so that a plan may choose by it.
SIZED_OPERATIONS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")

# Plan files choose at powers of two up to this.
MOST_PLANNED_BYTES = 1 << 30

# Times that differ by less count as equal, as in the core.
ABOUT_EQUAL = 0.01


@dataclass(frozen=True)
class Choice:
    """The price of every algorithm, and the one to use.

    Attributes:
        chosen: the choice of a job without a plan file.
        fastest: the least predicted time, which a plan file names.
        bound_s: the least time that the hosts' NICs allow, without headers; 0 where nothing has to
            be sent.
    """

    prices: list[_core.Price]
    chosen: _core.Price
    fastest: _core.Price
    bound_s: float

    @property
    def reason(self) -> str:
        """How the choice of a job compares with the others."""
        if self.fastest is not self.chosen:
            return (
                f"the choice of a job, by estimates of {self.chosen.estimate_s * 1e3:.4g} ms and "
                f"{self.fastest.estimate_s * 1e3:.4g} ms for {self.fastest.name}; but that "
                f"is predicted to take {1 - self.fastest.seconds / self.chosen.seconds:.1%} less, "
                "and a plan file names it"
            )
        if not self.chosen.is_schedule:
            return "the choice of a job for this size, by thresholds that were measured"
        others = [price for price in self.prices if price is not self.chosen]
        if not others:
            return "the only one that applies"
        second = min(others, key=lambda price: price.seconds)
        more = second.seconds / self.chosen.seconds - 1
        if more < ABOUT_EQUAL:
            return f"as fast as {second.name} within 1 %, and the choice of a job"
        return f"the least time, which a job takes; {second.name}, the next, takes {more:.1%} more"


def choose(
    network: PlannedNetwork,
    topology: _core.Topology,
    op: str,
    num_bytes: int,
    element_bytes: int = 4,
) -> Choice:
    """Prices ``op``. ``num_bytes``: see `bound_s`. Raises ValueError for an unknown operation.

    ``topology`` is the network with the prices to count with. A job chooses with prices of its own,
    which are those of the planner.
    """
    job = network.of_job().on_shared_cores(topology.ranks_per_core)
    found = _core.compare(topology, job, op, num_bytes, element_bytes)
    prices = found.prices
    return Choice(
        prices, prices[found.chosen], prices[found.fastest], bound_s(network, op, num_bytes)
    )


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
        name = choose(network, topology, op, size, element_bytes).fastest.name
        if name != last:
            ranges[size if ranges else 0] = last = name
        size *= 2
    return ranges
