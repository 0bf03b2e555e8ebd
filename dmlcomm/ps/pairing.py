"""Which NIC of a worker meets which NIC of a server. Pure.

Between a worker with k NICs and a server with R there are max(k, R) rails:

- k = 1: one rail to each NIC of the server. One of them carries everything until it dies: the
  server's NIC in the worker's own subnet if there is one. Then the others are connected, and share
  the work with it when it is back. If several would do, worker w takes the one at place w, so
  that workers spread evenly (PSNet).
- k > 1: NICs that share a subnet are paired first, the rest in order; the side with fewer NICs goes
  round. Messages are striped over all rails.

Processes of one host need no rail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dmlcomm.rail import Rail

STRIPE = -1


@dataclass(frozen=True)
class Pairing:
    """Rail i connects pairs[i], a NIC of the worker and one of the server.

    `first_rail` carries everything until it dies; STRIPE: messages are cut over all of them.
    """

    pairs: tuple[tuple[Rail, Rail], ...]
    first_rail: int


def pair(worker: int, worker_nics: Sequence[Rail], server_nics: Sequence[Rail]) -> Pairing:
    """Pairs the NICs. Raises ValueError when no two of them can talk to each other."""
    mine = [nic for nic in worker_nics if any(_can_talk(nic, other) for other in server_nics)]
    theirs = [nic for nic in server_nics if any(_can_talk(nic, other) for other in worker_nics)]
    if not mine:
        raise ValueError(
            f"worker {worker} and the server have no NICs that can talk to each other: "
            f"worker {_listing(worker_nics)}; server {_listing(server_nics)}; "
            f"try DMLCOMM_SOCKET_IFNAME to choose interfaces"
        )
    if len(mine) == 1:
        reachable = [nic for nic in theirs if _can_talk(mine[0], nic)]
        near = [i for i, nic in enumerate(reachable) if nic.subnet == mine[0].subnet]
        choice = near or list(range(len(reachable)))
        first = choice[worker % len(choice)]
        return Pairing(tuple((mine[0], nic) for nic in reachable), first)
    return Pairing(tuple(_striped(mine, theirs)), STRIPE)


def _striped(mine: list[Rail], theirs: list[Rail]) -> list[tuple[Rail, Rail]]:
    """max(k, R) pairs; every NIC is in at least one."""
    num_pairs = max(len(mine), len(theirs))
    free_mine = [mine[i % len(mine)] for i in range(num_pairs)]
    free_theirs = [theirs[i % len(theirs)] for i in range(num_pairs)]
    pairs = []
    for fits in (_is_near, _can_talk):
        for nic in list(free_mine):
            partner = next((other for other in free_theirs if fits(nic, other)), None)
            if partner is not None:
                free_mine.remove(nic)
                free_theirs.remove(partner)
                pairs.append((nic, partner))
    return pairs


def _is_near(a: Rail, b: Rail) -> bool:
    return a.subnet == b.subnet


def _can_talk(a: Rail, b: Rail) -> bool:
    return a.subnet.version == b.subnet.version


def _listing(nics: Sequence[Rail]) -> str:
    return ", ".join(map(str, nics)) or "none"
