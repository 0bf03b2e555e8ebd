"""Flows on links: what they get of the links, and when they end.

    dmlcomm.sim.max_min_rates([[0], [0, 1], [1]], capacities=[10e9, 20e9])  # [5e9, 5e9, 15e9]

`max_min_rates` is for one moment, `Simulation` for flows that come and go. Nothing here imports
torch or numpy.
"""

from dmlcomm.sim.rates import max_min_rates
from dmlcomm.sim.simulation import Outcome, Simulation

__all__ = ["Outcome", "Simulation", "max_min_rates"]


def __dir__() -> list[str]:
    return list(__all__)
