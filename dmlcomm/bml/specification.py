"""The user's description of the network: the sizes of its levels, and the places of hosts."""

import json
import re
from dataclasses import dataclass

from dmlcomm.bml import grid

VARIABLE = "DMLCOMM_TOPOLOGY"
FORMS = (
    "auto, flat, bcube:n,k (bcube:3,2) or grid:AxB... (grid:4x3), perhaps with rates "
    "(bcube:3,2@10gbit), or file:PATH"
)

# A mistyped number should be an error of this variable, not a wait for a million hosts.
MAX_HOSTS = 1 << 20


class TopologyError(ValueError):
    """The setting is not legal, or the network is not what it says."""


@dataclass(frozen=True)
class Network:
    """How the hosts are connected, as far as the user says.

    Attributes:
        sizes: ports of the switches of each level, level 0 first; None for auto, () for flat.
        hosts: host names by number in the grid; empty if they are not named.
        interfaces: the NIC of each level, the same on all hosts; empty if they are not named.
        rates_bps: rate of the NICs of each level or rail in bits per second, one for all of them,
            or none; for planning.
        source: what the user wrote, for messages.
    """

    sizes: tuple[int, ...] | None = None
    hosts: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    rates_bps: tuple[int, ...] = ()
    source: str = f"{VARIABLE}=auto"

    @property
    def is_grid(self) -> bool:
        return bool(self.sizes)

    @property
    def num_levels(self) -> int:
        return len(self.sizes or ())

    def __str__(self) -> str:
        if self.sizes is None:
            return "auto"
        if len(set(self.sizes)) == 1:
            return f"bcube:{self.sizes[0]},{len(self.sizes)}"
        return "grid:" + "x".join(map(str, self.sizes)) if self.sizes else "flat"

    def number_of(self, host_name: str) -> int | None:
        """The number of the host of this name, given with its domain or without; None if none."""
        for name in (host_name, host_name.partition(".")[0]):
            if name in self.hosts:
                return self.hosts.index(name)
        return None

    def fingerprint(self) -> str:
        """The same text for the same network, wherever it was read from."""
        return json.dumps([str(self), self.hosts, self.interfaces, self.rates_bps])


def parse_sizes(text: str, where: str) -> tuple[int, ...] | None:
    """The sizes that auto, flat, bcube:... or grid:... stand for; ``where`` begins the error."""
    if text in ("auto", "flat"):
        return None if text == "auto" else ()
    if match := re.fullmatch(r"bcube:(\d{1,9}),(\d{1,2})", text):
        ports, levels = map(int, match.groups())
        return checked_sizes((ports,) * levels, where)
    if re.fullmatch(r"grid:\d{1,9}(x\d{1,9}){0,30}", text):
        return checked_sizes(tuple(map(int, text.removeprefix("grid:").split("x"))), where)
    raise TopologyError(f"{where} is not legal: expected {FORMS}")


def checked_sizes(sizes: tuple[int, ...], where: str) -> tuple[int, ...]:
    """``sizes``, if there is such a grid."""
    if not sizes or min(sizes) < 2:
        raise TopologyError(
            f"{where} is not legal: expected 1 level or more, and 2 ports or more per switch"
        )
    if grid.num_hosts(sizes) > MAX_HOSTS:
        raise TopologyError(f"{where} is not legal: expected at most {MAX_HOSTS} hosts")
    return sizes
