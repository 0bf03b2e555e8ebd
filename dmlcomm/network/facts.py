"""The facts that a rank publishes about its host, so that all ranks find the same network."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dmlcomm.bml.hosts import Host
from dmlcomm.rail import Rail

# Changes with the format: ranks of different versions get an error instead of a wrong topology.
VERSION = 3

_TEXTS = ("host_id", "host_name", "network", "plan", "problem")


class FactsError(ValueError):
    """Another rank has published facts in a format that this version does not have."""


@dataclass(frozen=True)
class Facts:
    """One rank's host.

    Attributes:
        host_id: the same text on all ranks of a host, and on no others.
        host_name: for messages, and for files that name hosts.
        rails: the chosen interfaces in the configured order; those without carrier, too.
        network: `Network.fingerprint` of what this rank was told.
        plan: `PlanFile.fingerprint` of what ``DMLCOMM_PLAN`` names; empty without one.
        problem: why this rank cannot take part; empty if it can.
    """

    host_id: str
    host_name: str
    rails: tuple[Rail, ...] = ()
    network: str = ""
    plan: str = ""
    problem: str = ""


def encode(facts: Facts) -> str:
    return json.dumps({"version": VERSION, **asdict(facts)})


def decode(text: str | bytes, rank: int) -> Facts:
    """Reads what ``rank`` has encoded. Raises FactsError that names it."""
    try:
        values = json.loads(text)
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r}, expected {VERSION}")
        return Facts(
            rails=tuple(_rail(rail) for rail in values["rails"]),
            **{name: _checked(values[name], str) for name in _TEXTS},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FactsError(
            f"rank {rank} has published malformed facts about its host ({error!r}); "
            "do all ranks run the same version of dmlcomm?"
        ) from error


def by_host(facts: Sequence[Facts]) -> list[Host]:
    """The hosts, in the order of their first ranks."""
    ranks_of: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        ranks_of.setdefault(fact.host_id, []).append(rank)
    return [
        Host(facts[ranks[0]].host_name, tuple(ranks), facts[ranks[0]].rails)
        for ranks in ranks_of.values()
    ]


def differing_rank(host: Host, facts: Sequence[Facts]) -> int | None:
    """A rank of the host that has chosen other interfaces than its first one."""
    chosen = {(rail.interface, rail.address) for rail in host.rails}
    for rank in host.ranks:
        if {(rail.interface, rail.address) for rail in facts[rank].rails} != chosen:
            return rank
    return None


def _rail(values: Any) -> Rail:
    rail = Rail(
        interface=_checked(values["interface"], str),
        address=_checked(values["address"], str),
        prefix_length=_checked(values["prefix_length"], int),
        has_carrier=values["has_carrier"] is True,
        speed_mbps=_checked(values["speed_mbps"], int | None),
        mtu=_checked(values["mtu"], int | None),
    )
    _ = rail.subnet  # raises ValueError if address and prefix length are none
    return rail


def _checked(value: Any, kind: Any) -> Any:
    is_number = isinstance(value, int)
    if not isinstance(value, kind) or isinstance(value, bool) or (is_number and value < 0):
        raise TypeError(f"expected {getattr(kind, '__name__', kind)}, not {value!r}")
    return value
