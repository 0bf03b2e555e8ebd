"""Bytes and rates of all links, from two readings of their counters."""

import time
from dataclasses import dataclass
from typing import Any

from dmlcomm.lab.client import Client
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import End, Link


@dataclass(frozen=True)
class Direction:
    """Traffic from one end of a link. ``rate_bps``: of whole frames, between two readings."""

    sender: End
    bytes: int
    drops: int
    rate_bps: float


@dataclass(frozen=True)
class LinkTraffic:
    """A link and its two directions: what ``a`` sent, then what ``b`` sent."""

    link: Link
    directions: tuple[Direction, Direction]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Rates in bits per second, delay in microseconds."""
        link = self.link
        return {
            "a": str(link.a),
            "b": str(link.b),
            "level": link.level,
            "up": link.up,
            "set_rate_bps": link.shape.rate_bps,
            "set_back_rate_bps": link.shape.back.rate_bps,
            "delay_us": link.shape.delay_us,
            "loss": link.shape.loss,
            "a_to_b": _plain(self.directions[0]),
            "b_to_a": _plain(self.directions[1]),
        }


_NOTHING = {"bytes": 0, "drops": 0}

# By node: "seconds" of the holder's clock, and "interfaces" with the counters of each.
Reading = dict[str, dict[str, Any]]


def read(client: Client) -> Reading:
    return dict(client.ask("counters")["nodes"])


def measure(client: Client, interval_s: float) -> list[LinkTraffic]:
    """Traffic over the next ``interval_s`` seconds. Raises LabError."""
    before = read(client)
    time.sleep(interval_s)
    return between(client, before, read(client))


def between(client: Client, before: Reading, after: Reading) -> list[LinkTraffic]:
    links = topology.links(client.graph())
    return [
        LinkTraffic(link, (_direction(link.a, before, after), _direction(link.b, before, after)))
        for link in links
    ]


def _direction(end: End, before: Reading, after: Reading) -> Direction:
    last = after[end.node]["interfaces"].get(end.interface, _NOTHING)
    # A port that was moved to this switch in between is read at its new place from now on.
    first = before[end.node]["interfaces"].get(end.interface, last)
    seconds = after[end.node]["seconds"] - before[end.node]["seconds"]
    # A queue that was made anew by a change of the rate counts from zero.
    sent = last["bytes"] - first["bytes"] if last["bytes"] >= first["bytes"] else last["bytes"]
    return Direction(end, last["bytes"], last["drops"], sent * 8 / seconds)


def _plain(direction: Direction) -> dict[str, float]:
    rate_bps = round(direction.rate_bps)
    return {"bytes": direction.bytes, "drops": direction.drops, "rate_bps": rate_bps}
