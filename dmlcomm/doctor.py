"""What ``dmlcomm doctor`` finds out: plain data, ready for JSON. It needs no torch."""

import importlib.metadata
import os
import platform
from typing import Any

from dmlcomm import _core
from dmlcomm.backends import ENTRY_POINT_GROUP
from dmlcomm.backends.versions import find_problem
from dmlcomm.bml import grid
from dmlcomm.bml.specification import Network, TopologyError
from dmlcomm.network import nic, setting

Values = dict[str, Any]

# Settings that nobody should find in a report, and what stands there instead.
SECRETS = ("secret", "ps_token")
SECRET = "(set)"
NOT_INSTALLED = "not installed"

UCX_IS_PACED = (
    "UCX's TCP (DMLCOMM_TRANSPORT=ucx) has this machine's congestion control, {name}, which "
    "{harm}; dmlcomm's own TCP takes cubic or reno instead (docs/topology.md). As root: "
    "`sysctl -w net.ipv4.tcp_congestion_control=cubic`"
)
# The kernel has a route for each address of the host, which connections inside the host take.
LOCAL_ROUTE = (
    "ip route change local {address} dev {device} table local proto kernel scope host "
    "src {address} congctl cubic"
)


def examine() -> Values:
    """Examines this machine. ``problems`` lists what stops dmlcomm from working as configured,
    ``advice`` what makes it slow."""
    problems: list[str] = []
    config = _configuration(problems)
    versions = _versions(problems)
    interfaces = _interfaces(config["socket_ifname"], problems)
    _check_algorithm(config["algorithm"], problems)
    transports = _transports()
    congestion_controls = _congestion_controls(config["tcp_congestion"], problems)
    return {
        "versions": versions,
        "cpu": {"cores": len(os.sched_getaffinity(0)), "kernels": _core.isa_name()},
        "interfaces": interfaces,
        "topology": _topology(config["topology"], interfaces, problems),
        "transports": transports,
        "congestion_controls": congestion_controls,
        "algorithms": _core.algorithms(),
        "configuration": _compared_to_defaults(config),
        "problems": problems,
        "advice": advice(config, transports, congestion_controls["system_default"], interfaces),
    }


def _configuration(problems: list[str]) -> Values:
    try:
        return _core.config()
    except ValueError as error:
        problems.append(str(error))
        return _core.config_defaults()


def _compared_to_defaults(config: Values) -> list[Values]:
    defaults = _core.config_defaults()
    return [
        {
            "variable": f"DMLCOMM_{key.upper()}",
            "value": SECRET if key in SECRETS and value else value,
            "default": defaults[key],
            "changed": value != defaults[key],
        }
        for key, value in config.items()
    ]


def _interfaces(pattern: str, problems: list[str]) -> list[Values]:
    interfaces = nic.list_interfaces()
    try:
        selection = nic.select(pattern, interfaces)
    except nic.InterfaceError as error:
        problems.append(str(error))
        selection = nic.Selection((), dict.fromkeys((i.name for i in interfaces), "not chosen"))
    rail_of = {rail.interface: number for number, rail in enumerate(selection.rails)}
    return [
        {
            "name": interface.name,
            "addresses": list(interface.addresses),
            "mtu": interface.mtu,
            "speed_mbps": interface.speed_mbps,
            "rail": rail_of.get(interface.name),
            "why_not": selection.rejected.get(interface.name),
        }
        for interface in interfaces
    ]


def _topology(text: str, interfaces: list[Values], problems: list[str]) -> Values:
    """The setting, and which interface is on which level as far as this host alone can tell."""
    try:
        network = setting.parse(text)
    except TopologyError as error:
        problems.append(str(error))
        network = Network()
    rails = {i["rail"]: i["name"] for i in interfaces if i["rail"] is not None}
    found = [rails[number] for number in sorted(rails)]
    for name in network.interfaces:
        if name not in found:
            problems.append(f"{network.source}: {name} is not a rail of this host: {found}")
    if network.num_levels > len(found):
        problems.append(
            f"{network.source}: {network} needs {network.num_levels} interfaces per host, and this "
            f"host has {len(found)} to use: {found}; see DMLCOMM_SOCKET_IFNAME"
        )
    names = list(network.interfaces) or found[: network.num_levels or None]
    host = network.number_of(_core.host_name())
    return {
        "setting": text,
        "network": str(network),
        "levels": names,
        "digits": None if host is None else grid.to_digits(host, network.sizes or ()),
        "certain": bool(network.interfaces),
    }


def _check_algorithm(text: str, problems: list[str]) -> None:
    try:
        _core.check_algorithm(text)
    except ValueError as error:
        problems.append(str(error))


def _transports() -> list[Values]:
    probes = {
        "shm": _core.probe_shared_memory,
        "shm, single copy": _core.probe_single_copy,
        "tcp": _core.probe_tcp,
        "ucx": _core.probe_ucx,
    }
    results = []
    for name, probe in probes.items():
        result = probe()
        results.append({"name": name, "works": result.works, "detail": result.detail})
    return results


def _congestion_controls(wanted: str, problems: list[str]) -> Values:
    controls = _core.probe_congestion_controls()
    if wanted and wanted not in controls.usable:
        usable = ", ".join(controls.usable)
        problems.append(f'DMLCOMM_TCP_CONGESTION="{wanted}" is not usable here (usable: {usable})')
    return {
        "system_default": controls.system_default,
        "usable": controls.usable,
        "refused": controls.refused,
    }


def advice(
    config: Values, transports: list[Values], system_congestion: str, interfaces: list[Values]
) -> list[str]:
    """What makes dmlcomm slow on this machine as it is configured, and what to do."""
    ucx = next(one for one in transports if one["name"] == "ucx")
    has_tcp = config["transport"] == "ucx" and ucx["works"] and " tcp/" in ucx["detail"]
    if not (has_tcp and system_congestion.startswith("bbr")):
        return []
    harm = "divides ports of switches unevenly"
    if " posix/" in ucx["detail"] and config["ucx_remote_memory"] != "off":
        return [UCX_IS_PACED.format(name=system_congestion, harm=harm)]
    # Ranks of a host use UCX's TCP, too.
    harm = f"slows long streams inside a host and {harm}"
    paced = UCX_IS_PACED.format(name=system_congestion, harm=harm)
    routes = [
        f"`{LOCAL_ROUTE.format(address=address.partition('/')[0], device=interface['name'])}`"
        for interface in interfaces
        for address in interface["addresses"]
        if interface["rail"] is not None and ":" not in address
    ]
    if routes:
        paced += f", or for connections inside this host alone {', '.join(routes)}"
    return [paced]


def _versions(problems: list[str]) -> dict[str, str]:
    registered = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name="dmlcomm")
    torch = version_of("torch")
    if torch != NOT_INSTALLED and (problem := find_problem(torch)):
        problems.append(problem)
    return {
        "dmlcomm": version_of("dmlcomm"),
        "dmlcomm is built for torch": _core.TORCH_VERSION,
        "torch": torch,
        "torch finds the backend": "yes" if registered else "after import dmlcomm",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }


def version_of(distribution: str) -> str:
    """The installed version, read without importing the package."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED
