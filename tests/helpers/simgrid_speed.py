"""CPU time of 40,000 flows in `dmlcomm.sim.Simulation` and in SimGrid.

    PYTHONPATH=tests python -m helpers.simgrid_speed [CASE …]

Links have 10 Gb/s, and no latency. Both say when the last flow ends, which has to be the same.
"""

import random
import sys
import time
from collections.abc import Callable

from dmlcomm.sim import Simulation
from helpers import simgrid_runs

NUM_FLOWS, RATE_BPS, NUM_HOSTS = 40_000, 10e9, 1024
NUM_WORKERS, NUM_SERVERS = 800, 50
LEAST_BYTES, MOST_BYTES, BUSY = 10**6, 20 * 10**6, 0.7
MOST_DIFFERENCE = 0.01
DEADLINE_S = 3000

Flow = simgrid_runs.Flow


def to_servers(num_bytes: Callable[[], int]) -> list[Flow]:
    """Every worker sends to every server, all at once."""
    return [
        ([worker, NUM_WORKERS + server], num_bytes(), 0.0)
        for worker in range(NUM_WORKERS)
        for server in range(NUM_SERVERS)
    ]


def between_pairs(num_bytes: Callable[[], int], rng: random.Random) -> list[Flow]:
    """Flows come at random times, as many as make hosts so `BUSY`."""
    mean_bits = 8 * (LEAST_BYTES + MOST_BYTES) / 2
    seconds = NUM_FLOWS * mean_bits / (BUSY * NUM_HOSTS * RATE_BPS)
    flows = []
    for _ in range(NUM_FLOWS):
        sender, receiver = rng.sample(range(NUM_HOSTS), 2)
        flows.append(([sender, NUM_HOSTS + receiver], num_bytes(), rng.uniform(0, seconds)))
    return flows


def cases() -> dict[str, list[Flow]]:
    rng = random.Random(1)

    def num_bytes() -> int:
        return rng.randint(LEAST_BYTES, MOST_BYTES)

    return {
        "servers-one-size": to_servers(lambda: 10**7),
        "servers": to_servers(num_bytes),
        "pairs": between_pairs(num_bytes, rng),
    }


def compare(name: str, flows: list[Flow]) -> None:
    capacities = [RATE_BPS] * (1 + max(max(path) for path, _, _ in flows))
    simulation = Simulation(capacities)
    for path, size, start_s in flows:
        simulation.flow(path, size, start_s=start_s)
    began = time.process_time()
    ours_s = simulation.run().makespan_s
    our_cpu_s = time.process_time() - began
    theirs = simgrid_runs.play(capacities, flows, deadline_s=DEADLINE_S)
    difference = ours_s / max(theirs["ends"]) - 1
    print(
        f"{name}: {our_cpu_s:.2f} s, SimGrid {theirs['cpu_s']:.1f} s, "
        f"{theirs['cpu_s'] / our_cpu_s:.0f} x; makespan {ours_s:.4f} s, {difference:+.3%}",
        flush=True,
    )
    if abs(difference) > MOST_DIFFERENCE:
        raise SystemExit(f"{name}: the makespans differ")


if __name__ == "__main__":
    found = cases()
    for name in sys.argv[1:] or found:
        compare(name, found[name])
