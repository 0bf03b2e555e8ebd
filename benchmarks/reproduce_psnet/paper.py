"""What the paper reports, and the models at the scale at which they are repeated."""

from dataclasses import dataclass

from benchmarks.reproduce_psnet.networks import fat_tree, psnet


@dataclass(frozen=True)
class Model:
    """``scale``: of its bytes, so that push and pull take half a second in PSNet at 200 Mb/s."""

    name: str
    scale: float


MODELS = (Model("vgg16", 1 / 80), Model("resnet50", 1 / 16))

# Section 5.2, figure 13: how much faster than the fat tree without over-subscription, "up to".
PAPER_SPEEDUP = {"vgg16": 1.89, "resnet50": 1.92}


def share_of_paper(speedup: float) -> float:
    """Share of computing in a PSNet batch at which theory gives ``speedup``, without overlap.

    The paper states neither times nor how fast workers compute. With c the time of computing, t the
    transfers of PSNet and 3t those of the fat tree, (3t + c)/(t + c) is the speed-up.
    """
    ours, theirs = psnet(2, 2, 2).transfer_s(1.0), fat_tree(0, 2, 2, 2).transfer_s(1.0)
    ratio = theirs / ours
    compute = (ratio - speedup) / (speedup - 1)
    return compute / (1 + compute)
