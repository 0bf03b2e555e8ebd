"""What the tests with several ranks share."""

from helpers.ranks import Ranks, RanksFailedError, meet, report, run_ranks
from helpers.values import Expectations
from helpers.waiting import DEADLINE_S, eventually, until_asleep

__all__ = [
    "DEADLINE_S",
    "Expectations",
    "Ranks",
    "RanksFailedError",
    "eventually",
    "meet",
    "report",
    "run_ranks",
    "until_asleep",
]
