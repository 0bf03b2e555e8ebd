"""The set-up of MLNET's simulation (HotCloud 2015) as scenarios of ``dmlcomm simulate``.

The paper has 1,024 hosts at 320 16-port switches with 10 Gb/s, 800 workers and 50 to 400 servers on
random hosts, 65 billion parameters, and 30 s of computing between two synchronisations. A scenario
here is one such step. Weights of 4 bytes are taken.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dmlcomm.simulate.scenario import Scenario, parse

NUM_HOSTS = 1024
NUM_WORKERS = 800
MODEL_BYTES = 4 * 65 * 10**9
COMPUTE_S = 30
# Of concurrent jobs: each is a quarter of the large one.
NUM_JOBS, WORKERS_OF_JOB, SERVERS_OF_JOB = 20, 200, 50

# By the paper's names.
TREES = {"BASELINE": "direct", "BINARY": "binary", "RACK": "rack"}
# Of the shortest step simulated, less than 0.5 %.
RESOLUTION_S = 2


def one_job(
    servers: int,
    over_subscription: int,
    tree: str,
    order: str,
    seed: int = 1,
    is_shared: bool = False,
) -> Scenario:
    """800 workers and some servers. ``tree`` and ``order`` as in a scenario.

    ``is_shared``: hosts of workers are drawn one by one, so some have several, each a node of the
    trees. A file of `dmlcomm simulate` has as many on each.
    """
    draws = random.Random(seed)
    workers = draws.sample(range(NUM_HOSTS), NUM_WORKERS)
    placed = draws.sample(range(NUM_HOSTS), servers)
    job = _job("train", workers, placed, MODEL_BYTES, tree, order)
    scenario = _scenario(over_subscription, [job])
    if is_shared:
        hosts = tuple(draws.choices(range(NUM_HOSTS), k=NUM_WORKERS))
        scenario = replace(scenario, jobs=(replace(scenario.jobs[0], hosts=hosts),))
    return scenario


def many_jobs(tree: str, order: str, has_priorities: bool, seed: int = 1) -> Scenario:
    """20 jobs on random hosts, without over-subscription; priorities are drawn, too."""
    draws = random.Random(seed)
    jobs = []
    for number in range(NUM_JOBS):
        workers = draws.sample(range(NUM_HOSTS), WORKERS_OF_JOB)
        servers = draws.sample(range(NUM_HOSTS), SERVERS_OF_JOB)
        priority = draws.randrange(NUM_JOBS)
        job = _job(f"job{number}", workers, servers, MODEL_BYTES // 4, tree, order)
        jobs.append(job | {"priority": priority if has_priorities else 0})
    return _scenario(1, jobs)


def _job(
    name: str,
    workers: Sequence[int],
    servers: Sequence[int],
    num_bytes: int,
    tree: str,
    order: str,
) -> dict[str, Any]:
    job = {"name": name, "op": "push_pull", "size": num_bytes, "compute": COMPUTE_S, "tree": tree}
    return job | {"hosts": list(workers), "servers": list(servers), "tree_order": order}


def _scenario(over_subscription: int, jobs: list[dict[str, Any]]) -> Scenario:
    network = {"topology": f"fattree:16,r={over_subscription}", "rate": "10gbit"}
    return parse(network | {"resolution": RESOLUTION_S, "jobs": jobs})
