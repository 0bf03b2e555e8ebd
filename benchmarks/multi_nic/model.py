"""What the planner expects of the experiments."""

import os
from dataclasses import replace

from dmlcomm.planning import network as planned
from dmlcomm.planning.pricing import choose
from dmlcomm.planning.shared_cores import on_shared_cores
from dmlcomm.topology.shape import UNLIMITED

# What the drivers of links without a rate say (veth).
FREE_RATE = "10gbit"


def model_s(
    spec: str,
    rate: str,
    size: int,
    mtu: int,
    ranks_per_host: int = 1,
    share: float = 1,
    probe_s: float | None = None,
) -> float:
    """What the planner expects of an all_reduce in a lab on this machine, whose cores all share.

    Several buckets count as one tensor.

    Args:
        share: of each rate that is there, where a host has lost NICs. What they carried comes to
            those that are left from other neighbours besides, so as much of it contends.
        probe_s: what an all_reduce of `shared_cores.PROBE_BYTES` took there, if that was measured.
    """
    rate = FREE_RATE if rate == UNLIMITED else rate
    network = planned.parse(spec, rate, ranks_per_host, mtu)
    if share < 1:
        share /= 1 + (1 - share) * (network.core().contention - 1)
        network = replace(network, rates_bps=tuple(share * each for each in network.rates_bps))
    cores = len(os.sched_getaffinity(0))
    shared = on_shared_cores(network, network.num_ranks / cores, probe_s)
    return choose(network, shared, "all_reduce", size).chosen.seconds
