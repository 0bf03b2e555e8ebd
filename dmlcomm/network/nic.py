"""NIC selection: which interfaces of this host become rails.

``DMLCOMM_SOCKET_IFNAME`` is a comma list and takes the union of NCCL's and gloo's syntax:

========== =================================================================
item       chooses
========== =================================================================
``eth0``   the interface of exactly this name, if there is one (gloo);
           else every interface whose name starts with it (NCCL)
``=eth0``  the interface of exactly this name, never a prefix
``^list``  everything that the default would choose, except what the list
           after ``^`` names (``^docker0,=eth3``)
========== =================================================================

The default takes every interface that is up, has a usable address, and is neither loopback nor
virtual (docker, veth, bridges, tunnels). A virtual interface or loopback is used only when it is
named: never as a silent fallback.

Rails come in the order of the list, interfaces of one item in the order of their kernel index.
Rail i of one host talks to rail i of another, so hosts whose interfaces are numbered differently
can be matched by listing the names in order.
"""

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.rail import Rail

# Interfaces that lead to containers, virtual machines or tunnels on this host, by the names their
# makers give them. An item of the list that names one overrides this.
VIRTUAL_PREFIXES = {
    "docker": "docker",
    "veth": "veth pair",
    "br-": "docker bridge",
    "virbr": "libvirt bridge",
    "cni": "container bridge",
    "flannel": "container overlay",
    "cali": "container link",
    "podman": "container bridge",
    "lxc": "container bridge",
    "lxdbr": "container bridge",
    "tun": "tunnel",
    "tap": "tunnel",
}


IpInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class InterfaceError(ValueError):
    """The pattern chooses no interface of this host."""


@dataclass(frozen=True)
class Interface:
    """A network interface as the kernel describes it; ``addresses`` are "10.0.0.2/24" strings."""

    name: str
    index: int
    is_up: bool
    is_loopback: bool
    addresses: tuple[str, ...]
    mtu: int
    speed_mbps: int | None = None
    is_bridge: bool = False
    is_tunnel: bool = False
    has_carrier: bool = True


@dataclass(frozen=True)
class Selection:
    """The interfaces that the pattern chooses, in order, and why each other one was not taken.

    A candidate without carrier is no rail, unless the topology shows that its cable is only pulled.
    """

    candidates: tuple[Rail, ...]
    rejected: dict[str, str]

    @property
    def rails(self) -> tuple[Rail, ...]:
        return tuple(rail for rail in self.candidates if rail.has_carrier)


def list_interfaces() -> list[Interface]:
    addresses = psutil.net_if_addrs()
    found = []
    for name, stats in psutil.net_if_stats().items():
        flags = stats.flags.split(",")
        found.append(
            Interface(
                name=name,
                index=socket.if_nametoindex(name),
                is_up="up" in flags,
                has_carrier=stats.isup,
                is_loopback="loopback" in flags,
                addresses=tuple(_with_prefix(a) for a in addresses.get(name, ()) if _is_ip(a)),
                mtu=stats.mtu,
                speed_mbps=stats.speed or None,
                is_bridge=os.path.isdir(f"/sys/class/net/{name}/bridge"),
                is_tunnel=os.path.exists(f"/sys/class/net/{name}/tun_flags"),
            )
        )
    return sorted(found, key=lambda interface: interface.index)


def _is_ip(address: Any) -> bool:
    return address.family in (socket.AF_INET, socket.AF_INET6)


def _with_prefix(address: Any) -> str:
    """ "10.0.0.2/24" of psutil's address and netmask; the zone of "fe80::1%eth0" is dropped."""
    host = address.address.partition("%")[0]
    if not address.netmask:
        return f"{host}/{32 if address.family == socket.AF_INET else 128}"
    bits = int(ipaddress.ip_address(address.netmask))
    return f"{host}/{bits.bit_count()}"


def select(pattern: str, interfaces: Sequence[Interface]) -> Selection:
    """Applies ``pattern`` (empty: the default) to ``interfaces``.

    Raises InterfaceError when a pattern that names or excludes interfaces chooses none. The default
    may choose none: ranks of one host need no network.
    """
    interfaces = sorted(interfaces, key=lambda interface: interface.index)
    if pattern and not pattern.startswith("^"):
        candidates, rejected = _named(pattern, interfaces)
    else:
        candidates, rejected = _default_except(pattern.removeprefix("^"), interfaces)

    rails = []
    for interface in candidates:
        address = _best_address(interface)
        if not interface.is_up:
            rejected[interface.name] = "down"
        elif address is None:
            rejected[interface.name] = "no usable address (IPv4, or IPv6 beyond link-local)"
        else:
            rails.append(_rail(interface, address))
            if not interface.has_carrier:
                rejected[interface.name] = "no carrier"
    selection = Selection(tuple(rails), rejected)
    if pattern and not selection.rails:
        raise InterfaceError(_none_chosen(pattern, interfaces, rejected))
    return selection


def _named(pattern: str, interfaces: Sequence[Interface]) -> tuple[list[Interface], dict[str, str]]:
    """The interfaces that the items name, in the order of the items, each once."""
    chosen: dict[str, Interface] = {}
    for item in _items(pattern):
        for interface in _matches(item, interfaces):
            chosen.setdefault(interface.name, interface)
    rejected = {i.name: f"not named by {pattern}" for i in interfaces if i.name not in chosen}
    return list(chosen.values()), rejected


def _default_except(
    excluded: str, interfaces: Sequence[Interface]
) -> tuple[list[Interface], dict[str, str]]:
    """The interfaces of the default, without those that the items of `excluded` name."""
    excluded_names = {i.name for item in _items(excluded) for i in _matches(item, interfaces)}
    candidates, rejected = [], {}
    for interface in interfaces:
        reason = _why_not_default(interface)
        if interface.name in excluded_names:
            reason = f"excluded by ^{excluded}"
        if reason:
            rejected[interface.name] = reason
        else:
            candidates.append(interface)
    return candidates, rejected


def _items(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def _matches(item: str, interfaces: Sequence[Interface]) -> list[Interface]:
    """An exact name wins over a prefix: "eth1" does not choose eth10 where there is an eth1."""
    exact = [i for i in interfaces if i.name == item.removeprefix("=")]
    if exact or item.startswith("="):
        return exact
    return [i for i in interfaces if i.name.startswith(item)]


def _why_not_default(interface: Interface) -> str | None:
    if interface.is_loopback:
        return "loopback"
    if interface.is_bridge:
        return "bridge"
    if interface.is_tunnel:
        return "tunnel"
    for prefix, kind in VIRTUAL_PREFIXES.items():
        if interface.name.startswith(prefix):
            return kind
    return None


def _best_address(interface: Interface) -> IpInterface | None:
    """The first IPv4 address, else the first IPv6 one that is valid beyond the link."""
    parsed = [ipaddress.ip_interface(address) for address in interface.addresses]
    usable = [a for a in parsed if not a.ip.is_link_local]
    return min(usable, key=lambda a: a.version, default=None)


def _rail(interface: Interface, address: IpInterface) -> Rail:
    return Rail(
        interface=interface.name,
        address=str(address.ip),
        prefix_length=address.network.prefixlen,
        has_carrier=interface.has_carrier,
        speed_mbps=interface.speed_mbps,
        mtu=interface.mtu,
    )


def _none_chosen(pattern: str, interfaces: Sequence[Interface], rejected: dict[str, str]) -> str:
    listing = "; ".join(f"{i.name}: {rejected[i.name]}" for i in interfaces) or "none exist"
    return f'DMLCOMM_SOCKET_IFNAME="{pattern}" chooses no interface of this host ({listing})'


_logged_choices: set[tuple[Rail, ...]] = set()


def own_rails() -> list[Rail]:
    """The rails of this host, as configured. Raises InterfaceError."""
    candidates = select_candidates(str(_core.config()["socket_ifname"]))
    return [rail for rail in candidates if rail.has_carrier]


def known_rate_bps() -> float:
    """What the drivers of this host's rails say together; 0 if there is none that does."""
    try:
        return 1e6 * sum(rail.speed_mbps or 0 for rail in own_rails())
    except InterfaceError:
        return 0.0


def select_candidates(pattern: str) -> tuple[Rail, ...]:
    """The candidates of this host for ``pattern``; logs a choice once per process.

    Raises InterfaceError.
    """
    selection = select(pattern, list_interfaces())
    if selection.candidates not in _logged_choices:
        _logged_choices.add(selection.candidates)
        get_logger().info("%s", describe(selection))
    return selection.candidates


def describe(selection: Selection) -> str:
    """One line: the rails, and why the others were not taken."""
    chosen = ", ".join(map(_details, selection.rails)) or "none"
    others = ", ".join(f"{name}: {reason}" for name, reason in selection.rejected.items())
    return f"rails: {chosen}" + (f" (not taken: {others})" if others else "")


def _details(rail: Rail) -> str:
    speed = f", {rail.speed_mbps} Mb/s" if rail.speed_mbps else ""
    return f"{rail.interface} ({rail.address}/{rail.prefix_length}, MTU {rail.mtu}{speed})"
