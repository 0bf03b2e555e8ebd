"""What the tests with several ranks share."""

from helpers.ranks import Ranks, RanksFailedError, report, run_ranks

__all__ = ["Ranks", "RanksFailedError", "report", "run_ranks"]
