"""Calls that take less time as ranks find out about a network: from which one on a bar holds.

The bar holds from call k on if call k is within it, and of the calls from k to the last one at
most one in eight is late, that is, beyond it. So their median is within it, too. Single late calls
are interruptions, of a machine that has other work; rows count them. Of fewer than eight calls all
have to be within the bar.
"""

import statistics
from collections.abc import Sequence

from benchmarks import disturbance
from benchmarks.row import Row

CALLS_PER_LATE_ONE = 8


def held_from(late: Sequence[bool]) -> int | None:
    """The first call, counted from 1, from which on the bar holds; None if there is none."""
    for first, is_late in enumerate(late):
        after = late[first:]
        if not is_late and CALLS_PER_LATE_ONE * sum(after) <= len(after):
            return first + 1
    return None


def row(
    experiment: str,
    case: str,
    seconds: Sequence[float],
    *,
    bound_s: float,
    most_of_bound: float,
    held_by: int,
    wrong: int,
    stolen: float,
) -> Row:
    """Of calls with these ``seconds``, the median of those from which on the bar holds, or of all.

    Args:
        held_by: the call from which on it has to hold at the latest.
        stolen: the share of its cores' time that a virtual machine was not given meanwhile.
    """
    late = [each > most_of_bound * bound_s for each in seconds]
    begin = held_from(late)
    remark = f"{sum(late)} of {len(late)} calls are late, and the bar holds from none on"
    if begin is not None:
        remark = f"within the bar from call {begin} of {len(late)} on"
        num_late = sum(late[begin - 1 :])
        remark += f", but for {num_late}" if num_late else ""
    return Row(
        experiment=experiment,
        case=case,
        seconds=statistics.median(seconds[(begin or 1) - 1 :]),
        bound_s=bound_s,
        most_of_bound=most_of_bound,
        held_from=begin,
        held_by=held_by,
        wrong=wrong,
        remark="; ".join(filter(None, (remark, disturbance.remark(stolen)))),
    )
