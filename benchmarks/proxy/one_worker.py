"""What a proxy costs a single worker, which it saves nothing."""

import statistics
from collections.abc import Iterator

from benchmarks.proxy.cluster import Cluster, Load
from benchmarks.proxy.lab_hosts import Network
from benchmarks.row import Row

RATE = "1gbit"
# By bytes of the model, steps in a turn. Direct and by the proxy take turns.
STEPS = {1 << 10: 2000, 4 << 20: 20, 64 << 20: 3}
TURNS = 3
LARGE_BYTES = 4 << 20
MOST_SLOWDOWN = 1.05
MOST_ADDED_S = 20e-6


def rows() -> Iterator[Row]:
    """The bound is the time without a proxy, in the same run."""
    for num_bytes, steps in STEPS.items():
        ways: dict[str | None, list[float]] = {None: [], "flat": []}
        wrong = 0
        with Cluster(Load(Network(1, 1, RATE), num_bytes, steps)) as cluster:
            for way in list(ways) * TURNS:
                outcome = cluster.run(way)
                ways[way] += outcome.seconds
                wrong += outcome.wrong
        direct_s, seconds = map(statistics.median, ways.values())
        is_large = num_bytes >= LARGE_BYTES
        yield Row(
            experiment="one worker",
            case=f"{num_bytes >> 10} KiB",
            seconds=seconds,
            bound_s=direct_s,
            most_of_bound=MOST_SLOWDOWN if is_large else 1 + MOST_ADDED_S / direct_s,
            wrong=wrong,
            remark=f"{(seconds - direct_s) * 1e6:+.0f} us",
        )
