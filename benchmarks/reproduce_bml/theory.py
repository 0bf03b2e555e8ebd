"""Job completion times as the network allows them, and the computing time that the paper implies.

The paper states neither times nor the speed of computing. What its result at the largest
sub-minibatch implies is taken: the FLOP/s with which BML, at 40 GbE and without any loss, reduces
the job completion time by just that. Everything else follows, and is what can be compared.
"""

from benchmarks.reproduce_bml.paper import HOSTS, PAPER_RATE_BPS, RATE_BPS, Training, bml, p2p
from benchmarks.training.models import BYTES_PER_PARAMETER, MODELS
from benchmarks.training.plan import Plan, plan

# Between these FLOP/s, computing takes from nearly all to nearly none of an iteration.
LEAST_FLOPS, MOST_FLOPS = 1e9, 1e18
STEPS = 60  # of halving, on a logarithmic scale: far below a millionth


def iteration_s(iteration: Plan, rate_bps: float, gst_factor: float) -> float:
    """One iteration when layers are synchronised one after the other, each as soon as it is ready,
    in ``gst_factor`` times what its bytes take on one link."""
    now_s = 0.0
    for bucket in iteration.buckets:
        bits = bucket.elements * BYTES_PER_PARAMETER * 8
        now_s = max(now_s, bucket.ready_s) + gst_factor * bits / rate_bps
    return max(now_s, iteration.compute_s)


def reduction(model: str, batch: int, flops: float, rate_bps: float, scale: float = 1.0) -> float:
    """Share of the P2P parameter server's job completion time that BML(3,2) saves."""
    iteration = plan(MODELS[model](), batch, flops, scale, "layers")
    factors = (bml(3, 2).gst_factor, p2p(HOSTS).gst_factor)
    ours_s, peer_s = (iteration_s(iteration, rate_bps, factor) for factor in factors)
    return 1 - ours_s / peer_s


def flops_of_paper(training: Training) -> float:
    """FLOP/s of a server at which theory gives the paper's reduction at the largest sub-minibatch.

    More of them mean less computing to hide behind, and so a greater reduction.
    """
    low, high = LEAST_FLOPS, MOST_FLOPS
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        found = reduction(training.model, training.batches[-1], middle, PAPER_RATE_BPS)
        low, high = (middle, high) if found < training.reductions[0] else (low, middle)
    return (low * high) ** 0.5


def flops_in_lab(training: Training) -> float:
    """The same ratio of computing to communication at the lab's rate."""
    return flops_of_paper(training) * RATE_BPS / PAPER_RATE_BPS


def seconds_per_sample(training: Training, flops: float) -> float:
    """Forward and backward of one sample of the whole model."""
    return plan(MODELS[training.model](), 1, flops, 1.0).compute_s
