"""The plan file, which ``DMLCOMM_PLAN`` names.

.. code-block:: yaml

    plan: 1                  # version of the format
    hosts: 9
    ranks_per_host: 1
    grid: [3, 3]             # level 0 first; [] for a flat network
    prices:                  # what the choice was made with; for people
      rates_mbit: [200, 200]
      alpha_us: 30
    algorithms:              # operation -> first bytes -> algorithm from there on
      all_reduce:
        0: recursive_doubling
        65536: bml_ring
    servers: [0, 8]          # may be there: all_reduce goes to parameter servers of these hosts
    tree: binary             # of proxies: direct for none, else as `dmlcomm proxy serve --tree`
    racks: [a, a, b]         # by host, the name of its switch

Sizes are bytes of the vector, or of all ranks' pieces together, and begin at 0. Everything
else is an error that names the file and the line.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dmlcomm import _core
from dmlcomm.planning.network import PlanError

VERSION = 1
_NEEDED = ("plan", "hosts", "ranks_per_host", "grid", "algorithms")
_KEYS = (*_NEEDED, "prices", "servers", "tree", "racks")
# Workers talk to servers.
DIRECT = "direct"
TREES = (DIRECT, "flat", "binary", "rack", "rack-binary", "chain")


@dataclass(frozen=True)
class PlanFile:
    """The contents of the file.

    Attributes:
        algorithms: operation -> first bytes -> name.
        prices: those that the choice was made with.
        servers: hosts with a parameter server, in order; with some, all_reduce goes to them.
        tree: of their proxies, of `TREES`.
        racks: by host, the name of its switch; none where there is one.
    """

    hosts: int
    ranks_per_host: int
    grid: tuple[int, ...]
    algorithms: dict[str, dict[int, str]]
    prices: dict[str, Any] = field(default_factory=dict)
    servers: tuple[int, ...] = ()
    tree: str = DIRECT
    racks: tuple[str, ...] = ()

    @property
    def choices(self) -> str:
        """The choices in the engine's format: "op:first_bytes=name,..."."""
        return ",".join(
            f"{op}:{first}={name}"
            for op, ranges in self.algorithms.items()
            for first, name in sorted(ranges.items())
        )

    @property
    def fingerprint(self) -> str:
        """The same text for plans that do the same."""
        text = f"{self.hosts} {self.ranks_per_host} {self.grid} {self.choices}"
        if self.servers:
            text += f" {self.servers} {self.tree} {self.racks}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def server_at(self, host: int) -> int | None:
        """Which server a host has, or None. Raises PlanError for a host that there is not."""
        self._check(host)
        return self.servers.index(host) if host in self.servers else None

    def rack_of(self, host: int) -> str:
        """Raises PlanError for a host that there is not."""
        self._check(host)
        return self.racks[host] if self.racks else ""

    def _check(self, host: int) -> None:
        if not 0 <= host < self.hosts:
            raise PlanError(f"host {host}: the plan is for hosts 0 to {self.hosts - 1}")

    def fits(self, grid: tuple[int, ...], host_of_rank: tuple[int, ...]) -> bool:
        """Whether it is for these hosts. A grid of one level is a flat network."""
        own = self.grid if len(self.grid) > 1 else ()
        per_host = [host_of_rank.count(host) for host in set(host_of_rank)]
        return own == grid and per_host == [self.ranks_per_host] * self.hosts

    def __str__(self) -> str:
        shape = "grid " + " x ".join(map(str, self.grid)) if self.grid else "flat"
        return f"{shape}, {self.hosts} hosts with {self.ranks_per_host} ranks each"


def write(plan: PlanFile, path: str) -> None:
    """Raises PlanError if the file cannot be written."""
    values = {
        "plan": VERSION,
        "hosts": plan.hosts,
        "ranks_per_host": plan.ranks_per_host,
        "grid": list(plan.grid),
        "prices": plan.prices,
        "algorithms": plan.algorithms,
    }
    if plan.servers:
        values |= {"servers": list(plan.servers), "tree": plan.tree, "racks": list(plan.racks)}
    try:
        Path(path).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error}") from error


def load(path: str) -> PlanFile:
    """Raises PlanError that names the file and the line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    return parse(text, path)


def parse(text: str, path: str) -> PlanFile:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise PlanError(f"{path} is not legal YAML: {error}") from error
    values = {key.value: (key, value) for key, value in _items(root, path)}
    for name, (key, _) in values.items():
        if name not in _KEYS:
            raise _error(path, key, f"unknown key {name}; expected of {', '.join(_KEYS)}")
    for name in _NEEDED:
        if name not in values:
            raise PlanError(f"{path}:1: the key {name} is missing")
    if (version := _number(values["plan"][1], path)) != VERSION:
        raise _error(path, values["plan"][1], f"version {version}, expected {VERSION}")
    hosts = _number(values["hosts"][1], path)
    return PlanFile(
        hosts=hosts,
        ranks_per_host=_number(values["ranks_per_host"][1], path),
        grid=_grid(values["grid"][1], path),
        algorithms=_algorithms(values["algorithms"][1], path),
        **_of_servers({name: value for name, (_, value) in values.items()}, hosts, path),
    )


def _of_servers(values: dict[str, Any], hosts: int, path: str) -> dict[str, Any]:
    """The keys that a plan with parameter servers has."""
    found: dict[str, Any] = {}
    if "servers" in values:
        node = values["servers"]
        found["servers"] = tuple(_number(item, path) for item in _list(node, path, "servers"))
        if len(set(found["servers"])) < len(found["servers"]) or any(
            host >= hosts for host in found["servers"]
        ):
            raise _error(path, node, f"servers: expected hosts from 0 to {hosts - 1}, each once")
    if "tree" in values:
        found["tree"] = values["tree"].value
        if found["tree"] not in TREES:
            raise _error(path, values["tree"], f"tree: expected of {', '.join(TREES)}")
    if "racks" in values:
        racks = tuple(str(item.value) for item in _list(values["racks"], path, "racks"))
        if len(racks) not in (0, hosts):
            raise _error(path, values["racks"], f"racks: {len(racks)} names, expected {hosts}")
        found["racks"] = racks
    return found


def _error(path: str, node: Any, what: str) -> PlanError:
    return PlanError(f"{path}:{node.start_mark.line + 1}: {what}")


def _items(node: Any, path: str) -> list[tuple[Any, Any]]:
    """Keys and values of a mapping, each key once."""
    if not isinstance(node, yaml.MappingNode):
        raise (
            PlanError(f"{path}:1: expected keys and values")
            if node is None
            else _error(path, node, "expected keys and values")
        )
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value in seen:
            raise _error(path, key, "expected a key that is not there twice")
        seen.add(key.value)
    return list(node.value)


def _number(node: Any, path: str) -> int:
    if not isinstance(node, yaml.ScalarNode) or not (
        node.value.isascii() and node.value.isdigit() and len(node.value) <= 18
    ):
        raise _error(path, node, "expected a whole number from 0")
    return int(node.value)


def _grid(node: Any, path: str) -> tuple[int, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise _error(path, node, "grid: expected a list of numbers, level 0 first: [4, 3]")
    return tuple(_number(item, path) for item in node.value)


def _list(node: Any, path: str, name: str) -> list[Any]:
    if not isinstance(node, yaml.SequenceNode) or not all(
        isinstance(item, yaml.ScalarNode) for item in node.value
    ):
        raise _error(path, node, f"{name}: expected a list, with one entry per host that it names")
    return list(node.value)


def _algorithms(node: Any, path: str) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for op, ranges in _items(node, path):
        choices = []
        found[op.value] = {}
        for first, name in _items(ranges, path):
            if not isinstance(name, yaml.ScalarNode):
                raise _error(path, name, "expected the name of an algorithm")
            number = _number(first, path)
            found[op.value][number] = name.value
            choices.append(f"{op.value}:{number}={name.value}")
            try:
                _core.check_plan(",".join(choices))
            except ValueError as error:
                raise _error(path, name, str(error)) from error
    return found
