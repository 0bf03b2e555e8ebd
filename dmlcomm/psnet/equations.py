"""PSNet's equations: the time of a batch with parameter servers of several NICs, and its moves.

Source: "PSNet: Reconfigurable network topology design for accelerating parameter server
architecture based distributed machine learning", JNCA 2020, sections 3 and 4; the numbers of the
equations are the paper's.

A module has R ToR switches. Each of the P servers has R NICs, one at each ToR; each of the W
workers has one, which a circuit switch connects to any ToR. A **deployment** says how many workers
are at each ToR: (2, 2, 2) is the paper's worker(2,2,2).

Sizes are bytes, bandwidths bytes per second (of one port, one direction), times seconds. A server's
port has K times the bandwidth of a worker's. Headers of packets are not counted.

    >>> job = Job(200e6, servers=2, workers=6)
    >>> round(deployed_transfer_s(job, (2, 2, 2), worker_bandwidth=125e6), 5)
    1.60004
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dmlcomm.topology.psnet import fewest_moves, spread

# A packet passes two links between a worker and a server of its module: at the ToR there is one
# switch, and a circuit switch is a wire.
HOPS_IN_MODULE = 2
# And from one module to another: the ToRs and the SuperNode switches are between them.
HOPS_BETWEEN_MODULES = 4


@dataclass(frozen=True)
class Job:
    """A model of ``model_bytes`` (S), cut evenly over ``servers`` (P), trained by ``workers`` (W).

    Raises ValueError without bytes, servers or workers.
    """

    model_bytes: float
    servers: int
    workers: int

    def __post_init__(self) -> None:
        if self.model_bytes <= 0 or self.servers < 1 or self.workers < 1:
            raise ValueError(
                f"a job needs bytes, servers and workers, at least one of each: {self}"
            )

    @property
    def shard_bytes(self) -> float:
        """S/P: what a worker exchanges with one server, in each direction."""
        return self.model_bytes / self.servers


@dataclass(frozen=True)
class Phases:
    """Seconds of the phases of one batch (section 4.1). ``sync_s`` is what the framework takes."""

    pull_s: float
    compute_s: float
    push_s: float
    update_s: float = 0.0
    sync_s: float = 0.0

    @property
    def bct_max_s(self) -> float:
        """Equation (1): batch completion time when no phase overlaps another."""
        return self.pull_s + self.compute_s + self.push_s + self.update_s + self.sync_s

    @property
    def bct_min_s(self) -> float:
        """Equation (2): batch completion time when computing, pulls and pushes all overlap."""
        return max(self.compute_s + self.update_s + self.sync_s, self.pull_s, self.push_s)


def deployed_transfer_s(
    job: Job,
    deployment: Sequence[int],
    worker_bandwidth: float,
    k: float = 1.0,
    latency_s: float = 20e-6,
) -> float:
    """Equation (5): seconds of a push, and of a pull, in one module.

    The ToR with the most workers is the last to finish: there ``max(deployment)`` workers share
    each server's port. With an even deployment that is W/R, and the equation is the paper's.

    Args:
        deployment: workers at each ToR.
        worker_bandwidth: B_w. A server's port has ``k`` times that (B_s).
        latency_s: of one link.

    Raises:
        ValueError: the deployment is not that of the job.
    """
    if sum(deployment) != job.workers:
        raise ValueError(f"{tuple(deployment)} deploys {sum(deployment)} of {job.workers} workers")
    bandwidth = min(k * worker_bandwidth / max(deployment), worker_bandwidth / job.servers)
    return job.shard_bytes / bandwidth + HOPS_IN_MODULE * latency_s


def joined_transfer_s(
    job: Job,
    tors: int,
    first: tuple[int, int],
    worker_bandwidth: float,
    k: float = 1.0,
    hops: int = HOPS_BETWEEN_MODULES,
    latency_s: float = 20e-6,
    meeting: float | None = None,
) -> float:
    """Equation (6): seconds of a push, and of a pull, in two modules.

    The paper prints P - 1 where its derivation gives P - P1, which is taken here.

    Args:
        tors: R of each module. R times a server's port is between the modules.
        first: servers (P1) and workers (W1) in the first module; the rest are in the second.
        hops: alpha, links on the longest path.
        meeting: workers that share the port of a server that most of them share; by default W/R,
            as with the paper's even deployments.
    """
    servers, workers = first
    port = k * worker_bandwidth
    away = workers * (job.servers - servers), (job.workers - workers) * servers
    meeting = job.workers / tors if meeting is None else meeting
    shares = [port / meeting, worker_bandwidth / job.servers]
    shares += [tors * port / flows for flows in away if flows]
    return job.shard_bytes / min(shares) + hops * latency_s


def fat_tree_transfer_s(
    job: Job,
    worker_bandwidth: float,
    flows: int,
    over_subscription: float = 1.0,
    hops: int = 6,
    k: float = 1.0,
    latency_s: float = 20e-6,
) -> float:
    """Equation (7): seconds of a push, and of a pull, in a fat tree; a server has one NIC.

    Args:
        flows: C, the most that pass one link above the ToRs at the same time.
        over_subscription: r at the ToRs; links above them have B_w / r.
        hops: beta, links on the longest path; 6 from one pod to another.
    """
    above = worker_bandwidth / over_subscription
    shares = (k * worker_bandwidth / job.workers, worker_bandwidth / job.servers, above / flows)
    return job.shard_bytes / min(shares) + hops * latency_s


def moves(tor_of_worker: Sequence[int], tors: int) -> list[tuple[int, int]]:
    """The fewest moves, as (worker, ToR), after which no ToR has two workers more than another.

    What a circuit switch has to change when workers come and go.

    >>> moves([0, 1, 2, 2, 2, 2], 3)
    [(4, 0), (5, 1)]
    """
    counts = [list(tor_of_worker).count(tor) for tor in range(tors)]
    if sum(counts) != len(tor_of_worker):
        raise ValueError(f"{tuple(tor_of_worker)} names a ToR that is not from 0 to {tors - 1}")
    # The ToRs that have most keep the one more that some of them get.
    order = sorted(range(tors), key=lambda tor: -counts[tor])
    wanted = dict(zip(order, spread(len(tor_of_worker), tors), strict=True))
    members = [[worker for worker, at in enumerate(tor_of_worker) if at == t] for t in range(tors)]
    return fewest_moves(members, range(tors), [wanted[tor] for tor in range(tors)])
