"""Flows on links: what they get of the links.

    dmlcomm.sim.max_min_rates([[0], [0, 1], [1]], capacities=[10e9, 20e9])  # [5e9, 5e9, 15e9]

Nothing here imports torch or numpy.
"""

from dmlcomm.sim.rates import max_min_rates

__all__ = ["max_min_rates"]


def __dir__() -> list[str]:
    return list(__all__)
