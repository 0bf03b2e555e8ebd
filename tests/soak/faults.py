"""What rounds of all kinds have in common: faults, how long they take, and what may be wrong."""

import enum
import random
import time
from dataclasses import dataclass

# A peer that is silent for so long is lost.
PEER_TIMEOUT_S = 4.0
# What is shorter ends nothing. A machine with few cores may take five times as long over it.
SHORT_S = 0.8


class Failure(enum.Enum):
    """What is wrong, as it is counted."""

    WRONG_SUM = "wrong sums"
    HANG = "hangs"
    LOST_UPDATE = "lost updates"
    DOUBLED_UPDATE = "doubled updates"
    LEAK = "leaks"
    OTHER = "other failures"


class SoakError(Exception):
    """Something is wrong; of a hang the text has the stacks."""

    def __init__(self, text: str, failure: Failure = Failure.OTHER) -> None:
        super().__init__(text)
        self.failure = failure

    def within(self, place: str) -> "SoakError":
        """The same, with where it was before its text."""
        return SoakError(f"{place}: {self}", self.failure)


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
