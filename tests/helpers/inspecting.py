"""What ranks tell of themselves when they are asked from outside."""

from collections.abc import Callable, Collection
from typing import Any

from dmlcomm import inspection
from helpers.waiting import eventually


def group_of(rank: int, pids: Callable[[], Collection[int]]) -> dict[str, Any]:
    """The group in which one of these processes is this rank, as soon as it answers."""

    def found() -> dict[str, Any] | None:
        own = pids()
        groups = (
            group
            for state in inspection.ask_all()
            if state["pid"] in own
            for group in state["groups"]
        )
        return next((group for group in groups if group["rank"] == rank), None)

    return eventually(found, f"rank {rank} answers")
