"""The two networks of the paper: what the lab builds, and what the equations say of it.

"PSNet: Reconfigurable network topology design for accelerating parameter server architecture based
distributed machine learning", JNCA 2020, section 5: 2 parameter servers and 6 workers, in PSNet
with 3 ToR switches and in a fat tree with 4-port switches.
"""

from dataclasses import dataclass

from dmlcomm.psnet.equations import (
    Job,
    Phases,
    deployed_transfer_s,
    fat_tree_transfer_s,
)

SERVERS = 2
RATE_BPS = 200_000_000

# A host of the fat tree that is not a worker is a server; an edge switch has as many uplinks.
HOSTS_OF_EDGE = 2

# Links of the lab have no delay; what a packet takes is far below what is measured.
LATENCY_S = 0.0


@dataclass(frozen=True)
class Network:
    """A topology with its workers.

    Attributes:
        deployment: workers at each ToR, as in the paper's worker(2,2,2).
        rate_bps: of a worker's link (B_w).
        k: times that is the rate of a server's link.
        over_subscription: r of a fat tree; None is PSNet.
        servers: P.
    """

    deployment: tuple[int, ...]
    rate_bps: int = RATE_BPS
    k: float = 1.0
    over_subscription: float | None = None
    servers: int = SERVERS

    def __post_init__(self) -> None:
        if (
            not self.is_psnet
            and self.servers != len(self.deployment) * HOSTS_OF_EDGE - self.workers
        ):
            raise ValueError(f"{self}: hosts of the edges that are no workers are servers")

    @property
    def is_psnet(self) -> bool:
        return self.over_subscription is None

    @property
    def workers(self) -> int:
        return sum(self.deployment)

    @property
    def nics(self) -> int:
        """R, of a server."""
        return len(self.deployment) if self.is_psnet else 1

    @property
    def placement(self) -> str:
        return f"worker({','.join(map(str, self.deployment))})"

    @property
    def name(self) -> str:
        """Without the placement."""
        if self.is_psnet:
            return "PSNet" if self.k == 1 else f"PSNet, K = {self.k:g}"
        return f"fat tree, r = {self.over_subscription:g}"

    @property
    def topology(self) -> str:
        """As `dmlcomm lab up` takes it."""
        deployment = ",".join(map(str, self.deployment))
        if self.is_psnet:
            counts = f"{self.servers},{self.workers},{len(self.deployment)}"
            return f"psnet:{counts},K={self.k:g}@{deployment}"
        return f"fattree:4,r={self.over_subscription:g}@{deployment}"

    def job(self, model_bytes: float) -> Job:
        return Job(model_bytes, self.servers, self.workers)

    def transfer_s(self, model_bytes: float, flows: float | None = None) -> float:
        """Seconds of a push, and of a pull: equation (5), or (7) with ``flows`` for C."""
        job, bandwidth = self.job(model_bytes), self.rate_bps / 8
        if self.over_subscription is None:
            return deployed_transfer_s(job, self.deployment, bandwidth, self.k, LATENCY_S)
        return fat_tree_transfer_s(
            job,
            bandwidth,
            self.flows_above if flows is None else flows,
            self.over_subscription,
            latency_s=LATENCY_S,
        )

    def phases(self, model_bytes: float, compute_s: float, flows: float | None = None) -> Phases:
        """Equations (1) and (2) of a batch; updating is left out."""
        transfer_s = self.transfer_s(model_bytes, flows)
        return Phases(pull_s=transfer_s, compute_s=compute_s, push_s=transfer_s)

    @property
    def crossing(self) -> list[tuple[int, int]]:
        """By edge of the fat tree, the flows into it and out of it over its uplinks, while all
        workers push; while they pull, the two are exchanged.

        There is a flow for each worker and server that are not at the same edge.
        """
        found = []
        for workers in self.deployment:
            servers = HOSTS_OF_EDGE - workers
            into, out_of = servers * (self.workers - workers), workers * (self.servers - servers)
            found.append((into, out_of))
        return found

    @property
    def flows_above(self) -> int:
        """C with flows spread evenly over uplinks: the most on one of them, in one direction.

        How ECMP really spreads them, its hash of the ports decides.
        """
        return max(-(-flows // HOSTS_OF_EDGE) for pair in self.crossing for flows in pair)


def psnet(*deployment: int, k: float = 1.0, rate_bps: int = RATE_BPS) -> Network:
    """PSNet with that many workers at each ToR."""
    return Network(deployment, rate_bps, k)


def fat_tree(*deployment: int, r: float = 1.0, rate_bps: int = RATE_BPS) -> Network:
    """The fat tree with that many workers at each of its first edges."""
    return Network(deployment, rate_bps, over_subscription=r)
