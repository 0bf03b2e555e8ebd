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
_KEYS = ("plan", "hosts", "ranks_per_host", "grid", "prices", "algorithms")


@dataclass(frozen=True)
class PlanFile:
    """The contents of the file.

    Attributes:
        algorithms: operation -> first bytes -> name.
        prices: those that the choice was made with.
    """

    hosts: int
    ranks_per_host: int
    grid: tuple[int, ...]
    algorithms: dict[str, dict[int, str]]
    prices: dict[str, Any] = field(default_factory=dict)

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
        return hashlib.sha256(text.encode()).hexdigest()[:16]

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
    for name in _KEYS:
        if name not in values and name != "prices":
            raise PlanError(f"{path}:1: the key {name} is missing")
    if (version := _number(values["plan"][1], path)) != VERSION:
        raise _error(path, values["plan"][1], f"version {version}, expected {VERSION}")
    return PlanFile(
        hosts=_number(values["hosts"][1], path),
        ranks_per_host=_number(values["ranks_per_host"][1], path),
        grid=_grid(values["grid"][1], path),
        algorithms=_algorithms(values["algorithms"][1], path),
    )


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
