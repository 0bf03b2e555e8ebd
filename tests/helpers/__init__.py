"""What the tests with several ranks share."""

from helpers.ranks import Ranks, RanksFailedError, report, run_ranks
from helpers.values import Expectations

__all__ = ["Expectations", "Ranks", "RanksFailedError", "report", "run_ranks"]
