"""What rounds of all kinds have in common: a fault that has passed, and how long faults take."""

import random
import time
from dataclasses import dataclass

# A peer that is silent for so long is lost.
PEER_TIMEOUT_S = 4.0
# What is shorter ends nothing. A machine with few cores may take five times as long over it.
SHORT_S = 0.8


@dataclass(frozen=True)
class Event:
    """A fault that has passed.

    Attributes:
        seconds: from its begin until all went on.
    """

    name: str
    seconds: float


def pause(rng: random.Random, most_s: float = SHORT_S) -> None:
    """The time that a fault lasts, or until the next one."""
    time.sleep(rng.uniform(0, most_s))
