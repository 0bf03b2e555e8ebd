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
# ...and after this time for all keys, which is a long question where ranks are many.
_PATIENCE_S = 5.0


class Store(Protocol):
    """The methods of ``torch.distributed.Store`` that are used."""

    def set(self, key: str, value: str, /) -> None: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


def exchange(store: Store, rank: int, num_ranks: int, own: Facts, timeout_s: float) -> list[Facts]:
    """Publishes ``own`` and returns the facts of all ranks; collective over the group.

    It costs a rank the same few calls of the store for any number of ranks.

    Raises:
        TopologyError: on every rank, if a rank has a problem, or if ranks were told different
            networks or have different plan files.
        FactsError: a rank has published something else.
        TimeoutError: ranks have not published within ``timeout_s``.
    """
    keys = [f"{PREFIX}/{peer}" for peer in range(num_ranks)]
    store.set(keys[rank], encode(own))
    is_last = store.add(f"{PREFIX}/arrived", 1) >= num_ranks
    _meet(store, keys, is_last, timeout_s)
    facts = _decode_all(store.multi_get(keys))
    _check(facts)
    return facts


def _meet(store: Store, keys: list[str], is_last: bool, timeout_s: float) -> None:
    """Waits until all keys are there.

    The last rank looks at all of them, and says so; the others look for its word, one short key. A
    rank that was started again has counted twice, and the last one may die before its word: so it
    is the keys that decide, and who waits looks at them now and then.
    """
    complete = f"{PREFIX}/complete"
    deadline = time.monotonic() + timeout_s
    patience_s = 0.0 if is_last else _PATIENCE_S
    while not _wait(store, complete, min(deadline, time.monotonic() + patience_s)):
        if store.check(keys):
            store.set(complete, "1")
            return
        if time.monotonic() >= deadline:
            raise TimeoutError(_missing(store, keys, timeout_s))
        patience_s = _PATIENCE_S


def _missing(store: Store, keys: list[str], timeout_s: float) -> str:
    missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
    return (
        f"rank {', '.join(missing)} of {len(keys)} has not published its network interfaces "
        f"('{PREFIX}/...') within {round(timeout_s * 1000)} ms; check that every rank has started "
        "and creates the same groups in the same order"
    )


def _wait(store: Store, key: str, deadline: float) -> bool:
    """Store.wait would say on stderr that it has timed out, and not let Ctrl-C through."""
    pause_s = _FIRST_PAUSE_S
    while not store.check([key]):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True


def _decode_all(texts: Sequence[bytes]) -> list[Facts]:
    """Ranks of one host mostly publish the same text, which is decoded once."""
    decoded: dict[bytes, Facts] = {}
    for rank, text in enumerate(texts):
        if text not in decoded:
            decoded[text] = decode(text, rank)
    return [decoded[text] for text in texts]


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
