"""What a rank publishes about its host, so that all ranks find out the same about the network."""

import ipaddress
import json
from dataclasses import asdict, dataclass
from typing import Any

Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network

# Changes with the format: ranks of different versions get an error instead of a wrong topology.
VERSION = 2


class FactsError(ValueError):
    """What another rank has published is not what this version publishes."""


@dataclass(frozen=True)
class Rail:
    """An interface that may be used between hosts, with the address it binds to."""

    interface: str
    address: str
    prefix_length: int
    has_carrier: bool = True
    speed_mbps: int | None = None

    @property
    def subnet(self) -> Subnet:
        return ipaddress.ip_interface(f"{self.address}/{self.prefix_length}").network

    def __str__(self) -> str:
        return f"{self.interface} ({self.address}/{self.prefix_length})"


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
    """One JSON object."""
    return json.dumps({"version": VERSION, **asdict(facts)})


def decode(text: str | bytes, rank: int) -> Facts:
    """Reads what ``rank`` has encoded. Raises FactsError that names it."""
    try:
        values = json.loads(text)
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r}, expected {VERSION}")
        return Facts(
            host_id=_text(values["host_id"]),
            host_name=_text(values["host_name"]),
            rails=tuple(_rail(rail) for rail in values["rails"]),
            network=_text(values["network"]),
            plan=_text(values["plan"]),
            problem=_text(values["problem"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FactsError(
            f"rank {rank} has published malformed facts about its host ({error!r}); "
            "do all ranks run the same version of dmlcomm?"
        ) from error


def _rail(values: Any) -> Rail:
    rail = Rail(
        interface=_text(values["interface"]),
        address=_text(values["address"]),
        prefix_length=_whole(values["prefix_length"]),
        has_carrier=values["has_carrier"] is True,
        speed_mbps=None if values["speed_mbps"] is None else _whole(values["speed_mbps"]),
    )
    _ = rail.subnet  # raises ValueError if address and prefix length are none
    return rail


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {value!r}")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"expected a whole number, not {value!r}")
    return value
