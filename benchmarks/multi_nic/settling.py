"""Calls that take less time as ranks find out about a network: from which one on a bar holds."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from benchmarks import disturbance
from benchmarks.row import Row


def held_from(late: Sequence[bool]) -> int | None:
    """The first call, counted from 1, from which on no two in a row are late, nor the last one.

    A late call that stands alone is an interruption, not the way in which ranks work.
    """
    found = 1
    for call, (one, next_one) in enumerate(pairwise([*late, True]), 1):
        if one and (next_one or call == found):
            found = call + 1
    return found if found <= len(late) else None


def row(
    experiment: str,
    case: str,
    seconds: Sequence[float],
    bound_s: float,
    most_of_bound: float,
    held_by: int,
    wrong: int,
    stolen: float,
) -> Row:
    """Of calls with these ``seconds``, the median of those from which on the bar holds.

    Args:
        held_by: the call from which on it has to hold at the latest.
        stolen: the share of its cores' time that a virtual machine was not given meanwhile.
    """
    late = [each > most_of_bound * bound_s for each in seconds]
    begin = held_from(late)
    remark = f"of {len(late)} calls none is the first of those within the bar"
    if begin is not None:
        remark = f"within the bar from call {begin} of {len(late)} on"
        alone = sum(late[begin - 1 :])
        remark += f", but for {alone} that stand alone" if alone else ""
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
