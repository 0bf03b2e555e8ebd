"""What the paper reports, and how its clusters are set up here.

"BML: A High-performance, Low-cost Gradient Synchronization Algorithm for DML Training", NeurIPS
2018, section 4: 9 servers with two 40 GbE NICs in BCube(3,2), against the same servers with one NIC
each at one switch that run a P2P parameter server; job completion time of 1000 iterations.
"""

from dataclasses import dataclass

PAPER_RATE_BPS = 40_000_000_000
RATE = "200mbit"
RATE_BPS = 200_000_000
MTU = 9000
JOB_ITERATIONS = 1000


@dataclass(frozen=True)
class Network:
    """A topology with the way of synchronising that belongs to it.

    Attributes:
        env: settings of dmlcomm that make it so.
        gst_factor: of T_F, the time of the whole gradient on one link: 2(N - 1)/(k N).
    """

    name: str
    topology: str
    env: tuple[str, ...]
    gst_factor: float


def bml(ports: int, levels: int) -> Network:
    """BML on BCube(ports, levels)."""
    hosts = ports**levels
    factor = 2 * (hosts - 1) / (levels * hosts)
    return Network(f"BML, BCube({ports},{levels})", f"bcube:{ports},{levels}", (), factor)


def p2p(hosts: int) -> Network:
    """P2P parameter server on one NIC: every host serves 1/N of the gradient to all others."""
    env = ("DMLCOMM_ALGORITHM=all_reduce=direct",)
    return Network("P2P PS, one NIC", f"flat:{hosts},1", env, 2 * (hosts - 1) / hosts)


def ring(hosts: int) -> Network:
    """Ring on one NIC: the same bytes as the P2P parameter server, without senders that meet."""
    env = ("DMLCOMM_ALGORITHM=all_reduce=ring",)
    return Network("ring, one NIC", f"flat:{hosts},1", env, 2 * (hosts - 1) / hosts)


# Figure 5: the theory, which the paper gives for every BCube.
BCUBES = ((3, 2), (2, 3), (4, 2))
HOSTS = 9


@dataclass(frozen=True)
class Training:
    """One figure of job completion times.

    Attributes:
        batches: the sub-minibatches, samples per server.
        reductions: of the job completion time by BML, at the largest and the smallest of them; the
            paper gives no other number, and no times.
        scale: of gradients and computing time alike, so that a run is short.
    """

    model: str
    figure: int
    batches: tuple[int, ...]
    reductions: tuple[float, float]
    scale: float


LENET5 = Training("lenet5", 6, (128, 256, 512, 1024), (0.187, 0.564), scale=1.0)
VGG19 = Training("vgg19", 7, (8, 16, 32, 64), (0.292, 0.521), scale=1 / 20)
