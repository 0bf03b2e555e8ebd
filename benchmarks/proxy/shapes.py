"""Shapes of trees beside each other, and beside workers that talk to the servers themselves."""

from collections.abc import Iterator, Sequence

from benchmarks.proxy.cluster import Cluster, Load, Outcome
from benchmarks.proxy.lab_hosts import Network
from benchmarks.row import Row
from dmlcomm.ps import tree
from dmlcomm.topology.shape import parse_link_rate

RATE = "1gbit"
FOUR_HOSTS = Load(Network(4, 1, RATE), 40_000_000, 3, workers_each=4)
LEAST_SPEEDUP = 3.0

# 1:4 over-subscribed racks of eight hosts with workers and one with a server.
RACKS = Load(Network(32, 4, "100mbit", racks=4, oversubscription=4), 16_000_000, 2)
RACKS_LEAST_SPEEDUP = 2.5
RACKS_SHAPES = (tree.AUTO,)

# What decides between shapes: sizes, rates, number of hosts, and uplinks.
SETTINGS = {
    "large": Load(Network(4, 1, "400mbit"), 16_000_000, 5),
    "small": Load(Network(4, 1, "400mbit"), 4_000, 40),
    "middle": Load(Network(6, 1, "400mbit"), 400_000, 20),
    "slow": Load(Network(6, 1, "50mbit"), 400_000, 7),
    "servers": Load(Network(6, 2, "200mbit"), 16_000_000, 5),
    "racks": Load(Network(5, 1, "100mbit", racks=3, oversubscription=2), 4_000_000, 5),
}
MOST_OF_BEST = 1.1


def rows_beside_direct(
    load: Load, shapes: Sequence[str], least_speedup: float, case: str
) -> Iterator[Row]:
    """The bound is the time of the servers' NICs for one part of the model each way at once."""
    network = load.network
    bound_s = load.num_bytes * 8 / network.servers / parse_link_rate(network.rate)
    with Cluster(load) as cluster:
        direct = cluster.run(None)
        for shape in shapes:
            outcome = cluster.run(shape)
            yield Row(
                experiment="push_pull by proxies",
                case=f"{case}, {_name(shape, outcome)}",
                seconds=outcome.median_s,
                bound_s=bound_s,
                peer="direct",
                peer_s=direct.median_s,
                least_speedup=least_speedup,
                wrong=outcome.wrong + direct.wrong,
                remark=f"{outcome.bytes_in / 1e6:.0f} MB per step into the servers, "
                f"{direct.bytes_in / 1e6:.0f} MB direct",
            )


def rows_of_settings(names: Sequence[str]) -> Iterator[Row]:
    """A row for each: what `auto` takes; the bound is the best of all shapes in the same run."""
    for name in names:
        load = SETTINGS[name]
        with Cluster(load) as cluster:
            found = {shape: cluster.run(shape) for shape in tree.SHAPES}
            auto = cluster.run(tree.AUTO)
        times = ", ".join(f"{s} {outcome.median_s * 1e3:.1f}" for s, outcome in found.items())
        yield Row(
            experiment="auto against the best shape",
            case=f"{name}: {_describe(load)}, {_name(tree.AUTO, auto)}",
            seconds=auto.median_s,
            bound_s=min(outcome.median_s for outcome in found.values()),
            most_of_bound=MOST_OF_BEST,
            wrong=auto.wrong + sum(outcome.wrong for outcome in found.values()),
            remark=f"{times} ms",
        )


def _name(shape: str, outcome: Outcome) -> str:
    return shape if shape == outcome.shape else f"{shape} ({outcome.shape})"


def _describe(load: Load) -> str:
    network = load.network
    parts = [f"{network.hosts} hosts", f"{load.num_bytes / 1e6:g} MB", network.rate]
    if network.servers > 1:
        parts.append(f"{network.servers} servers")
    if network.racks > 1:
        parts.append(f"{network.racks} racks 1:{network.oversubscription:g}")
    return ", ".join(parts)
