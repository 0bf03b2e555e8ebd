"""Prices between hosts of one kernel whose ranks outnumber its cores, as in a lab.

There the cores take the time of small operations, not the links: they do the work of both sides,
which sleep and are woken. The planner's prices are those of one machine. A machine's own follow
from one small all_reduce that all its ranks took part in, as sending to and fro between two ranks
does while the others sleep says little about all at once.
"""

from dmlcomm import _core
from dmlcomm.planning.network import PlannedNetwork
from dmlcomm.planning.pricing import choose

PROBE_BYTES = 1024

# No machine is that much quicker than what the planner assumes.
LEAST_FACTOR = 0.05
MOST_STEPS = 8
EXACT = 1e-3


def on_shared_cores(
    network: PlannedNetwork, ranks_per_core: float, probe_s: float | None = None
) -> _core.Topology:
    """The prices of ``network`` where so many ranks share a core; its own where each rank has one.

    Args:
        probe_s: what an all_reduce of `PROBE_BYTES` took. Latency and overhead are scaled so that
            the model says the same, if the links leave it the time; the cost of a byte stays.
    """

    def scaled(factor: float) -> _core.Topology:
        topology = network.core().on_shared_cores(ranks_per_core)
        topology.alpha_s *= factor
        topology.overhead_s *= factor
        return topology

    if probe_s is None or ranks_per_core <= 1:
        return scaled(1)
    # Linear in the factor, unless it is the links that take the time.
    factor = 1.0
    for _ in range(MOST_STEPS):
        found, further = (
            choose(network, scaled(at), "all_reduce", PROBE_BYTES).chosen.seconds
            for at in (factor, 1.01 * factor)
        )
        slope = (further - found) / (0.01 * factor)
        if slope <= 0:
            break
        factor = max(LEAST_FACTOR, factor + (probe_s - found) / slope)
        if abs(found / probe_s - 1) < EXACT:
            break
    return scaled(factor)
