"""Results of backends that took turns."""

import statistics
from collections.abc import Sequence


def over_turns(results: Sequence[dict], size: int) -> list[dict]:
    """The results of one size, one per backend: the median of its turns, and the calls of all."""
    found: dict[str, list[dict]] = {}
    for result in results:
        if result["size"] == size:
            found.setdefault(result["backend"], []).append(result)
    return [
        turns[0]
        | {
            "seconds": statistics.median(turn["seconds"] for turn in turns),
            "each_s": [turn["each_s"] for turn in turns],
            "wrong": sum(turn["wrong"] for turn in turns),
        }
        for turns in found.values()
    ]
