"""The facts of all ranks, through the store with which a process group is made.

Every rank publishes, and every rank reads all, so that all conclude the same and fail alike: also
what goes wrong on one rank before it could publish its rails is published, as its problem.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from dmlcomm.bml.specification import VARIABLE, TopologyError
from dmlcomm.network.facts import Facts, decode, encode

PREFIX = "dmlcomm/topology"

# A waiting rank asks the store again after these pauses.
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class Store(Protocol):
    """The methods of ``torch.distributed.Store`` that are used."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


def exchange(store: Store, rank: int, num_ranks: int, own: Facts, timeout_s: float) -> list[Facts]:
    """Publishes ``own`` and returns the facts of all ranks; collective over the group.

    Raises:
        TopologyError: on every rank, if a rank has a problem, or if ranks were told different
            networks or have different plan files.
        FactsError: a rank has published something else.
        TimeoutError: a rank has not published within ``timeout_s``.
    """
    store.set(_key(rank), encode(own))
    facts = []
    deadline = time.monotonic() + timeout_s
    for peer in range(num_ranks):
        _wait(store, peer, deadline, timeout_s)
        facts.append(decode(store.get(_key(peer)), peer))
    _check(facts)
    return facts


def _key(rank: int) -> str:
    return f"{PREFIX}/{rank}"


def _wait(store: Store, rank: int, deadline: float, timeout_s: float) -> None:
    """Store.wait would say on stderr that it has timed out, and not let Ctrl-C through."""
    pause_s = _FIRST_PAUSE_S
    while not store.check([_key(rank)]):
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"rank {rank} has not published its network interfaces ('{_key(rank)}') within "
                f"{round(timeout_s * 1000)} ms; check that every rank has started and creates the "
                "same groups in the same order"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _check(facts: Sequence[Facts]) -> None:
    for rank, fact in enumerate(facts):
        if fact.problem:
            raise TopologyError(f"rank {rank} on {fact.host_name}: {fact.problem}")
    for rank, fact in enumerate(facts):
        if fact.network != facts[0].network:
            raise TopologyError(
                f"{VARIABLE} differs: rank 0 on {facts[0].host_name} has {facts[0].network}, rank "
                f"{rank} on {fact.host_name} has {fact.network}; set it alike on all ranks"
            )
        if fact.plan != facts[0].plan:
            raise TopologyError(
                f"DMLCOMM_PLAN differs: rank 0 on {facts[0].host_name} has "
                f"{_shown(facts[0].plan)}, rank {rank} on {fact.host_name} has "
                f"{_shown(fact.plan)}; give all ranks the same file"
            )


def _shown(plan: str) -> str:
    return f"a file with the hash {plan}" if plan else "no file"
