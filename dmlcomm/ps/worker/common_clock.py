"""From which clock servers continue that have read checkpoints. Pure."""

from collections.abc import Mapping
from typing import Any

from dmlcomm.errors import PsCheckpointError


def steps_back(restored: Mapping[int, Any]) -> dict[int, dict[int, int]]:
    """The clocks, by server and model, to which servers have to go back.

    `restored` has the servers' replies to `Restored`. Of each model all continue from the newest
    clock that all have. Nothing changes once a worker has registered with one of them: then the
    job runs, and who comes back has what it has.

    Raises PsCheckpointError: no clock is common to all.
    """
    if not all(reply.may_go_back for reply in restored.values()):
        return {}
    names = {model.model: model.name for reply in restored.values() for model in reply.models}
    steps: dict[int, dict[int, int]] = {}
    for number, name in names.items():
        clocks = {server: _clocks_of(reply, number) for server, reply in restored.items()}
        common = set.intersection(*(set(own) for own in clocks.values()))
        if not common:
            raise PsCheckpointError(_nothing_in_common(name, clocks))
        for server, own in clocks.items():
            if own[0] > max(common):
                steps.setdefault(server, {})[number] = max(common)
    return steps


def _clocks_of(reply: Any, number: int) -> list[int]:
    """Newest first."""
    found = [model for model in reply.models if model.model == number]
    return [found[0].clock, *sorted(found[0].older, reverse=True)] if found else []


def _nothing_in_common(name: str, clocks: Mapping[int, list[int]]) -> str:
    lists = "; ".join(
        f"server {server}: {', '.join(map(str, own)) or 'none'}"
        for server, own in sorted(clocks.items())
    )
    return (
        f'no clock of model "{name}" is in the checkpoints of all servers ({lists}); start the '
        f"servers with the folders (--checkpoint) that they had, move all checkpoints away to "
        f"begin anew, or continue with parts of different clocks: --allow-mixed-clocks"
    )
