"""The YAML file of ``DMLCOMM_TOPOLOGY=file:PATH``.

.. code-block:: yaml

    topology: bcube:3,2        # or, instead:  grid: [4, 3]
    hosts: [n0, n1, n2, ...]   # names by number in the grid; or a mapping from name to digits,
                               # level 0 first:  {n0: [0, 0], n1: [1, 0], ...}
    interfaces: {0: eth2, 1: ens5}      # NIC of each level, the same on all hosts
    rates: {0: 10gbit, 1: 25gbit}       # of each level; or one for all:  rates: 10gbit

Either ``topology`` or ``grid`` is required. ``hosts`` and ``interfaces`` need a grid. Any
other content is an error.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from dmlcomm.bml import grid
from dmlcomm.bml.specification import Network, TopologyError, checked_sizes, parse_sizes
from dmlcomm.units import parse_rate

_KEYS = ("topology", "grid", "hosts", "interfaces", "rates")


def load(path: str, source: str) -> Network:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{source}: {path} cannot be read: {error}") from error
    return parse(text, path, source)


def parse(text: str, path: str, source: str) -> Network:
    """The network that the text of a file describes; ``path`` is for messages."""
    try:
        _refuse_equal_keys(yaml.compose(text, yaml.SafeLoader))
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TopologyError(f"{path} is not legal YAML: {error}") from error
    if not isinstance(values, dict):
        raise TopologyError(f"{path}: expected keys and values, of the keys {', '.join(_KEYS)}")
    if unknown := [str(key) for key in values if key not in _KEYS]:
        raise TopologyError(
            f"{path}: unknown key {', '.join(unknown)}; expected of {', '.join(_KEYS)}"
        )
    sizes = _sizes(values, path)
    for key in ("hosts", "interfaces"):
        if key in values and not sizes:
            raise TopologyError(f"{path}: {key} needs a grid, as in topology: bcube:3,2")
    fields: dict[str, Any] = {"sizes": sizes, "source": source}
    if "hosts" in values:
        fields["hosts"] = _hosts(values["hosts"], sizes or (), path)
    if "interfaces" in values:
        fields["interfaces"] = _interfaces(values["interfaces"], sizes or (), path)
    if "rates" in values:
        fields["rates_bps"] = _rates(values["rates"], sizes, path)
    return Network(**fields)


def _refuse_equal_keys(node: Any) -> None:
    """PyYAML would take the last of several equal keys."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value} is there twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
            _refuse_equal_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_equal_keys(value)


def _sizes(values: dict[Any, Any], path: str) -> tuple[int, ...] | None:
    if ("topology" in values) == ("grid" in values):
        raise TopologyError(f"{path}: expected either topology or grid")
    if "topology" in values:
        return parse_sizes(str(values["topology"]), f"{path}: topology: {values['topology']}")
    sizes = values["grid"]
    if not isinstance(sizes, list) or not all(_is_number(size) for size in sizes):
        raise TopologyError(f"{path}: grid: expected a list of numbers, level 0 first: [4, 3]")
    return checked_sizes(tuple(sizes), f"{path}: grid: {sizes}")


def _hosts(value: Any, sizes: Sequence[int], path: str) -> tuple[str, ...]:
    where, expected = f"{path}: hosts", grid.num_hosts(sizes)
    if not isinstance(value, list | dict):
        raise TopologyError(f"{where}: expected a list of names, or a mapping from name to digits")
    if len(value) != expected:
        raise TopologyError(f"{where}: expected {expected} hosts, not {len(value)}")
    for name in value:
        if not isinstance(name, str) or not name:
            raise TopologyError(f'{where}: expected names of hosts, not {name!r}: use "quotes"')
    if isinstance(value, list):
        return _each_once(value, where)
    number_of = {name: _number(digits, sizes, f"{where}: {name}") for name, digits in value.items()}
    name_of: dict[int, str] = {}
    for name, number in number_of.items():
        if number in name_of:
            raise TopologyError(f"{where}: {name_of[number]} and {name} have the same digits")
        name_of[number] = name
    return tuple(name_of[number] for number in range(expected))


def _number(digits: Any, sizes: Sequence[int], where: str) -> int:
    if (
        not isinstance(digits, list)
        or len(digits) != len(sizes)
        or not all(_is_number(d) and d < n for d, n in zip(digits, sizes, strict=True))
    ):
        raise TopologyError(
            f"{where}: expected {len(sizes)} digits, level 0 first, each from 0 and less than "
            f"{list(sizes)}; not {digits!r}"
        )
    return grid.from_digits(digits, sizes)


def _interfaces(value: Any, sizes: Sequence[int], path: str) -> tuple[str, ...]:
    def name(text: Any, where: str) -> str:
        if not isinstance(text, str) or not text:
            raise TopologyError(f"{where}: expected the name of an interface, not {text!r}")
        return text

    names = _per_level(value, len(sizes), f"{path}: interfaces", name)
    return _each_once(names, f"{path}: interfaces")


def _rates(value: Any, sizes: Sequence[int] | None, path: str) -> tuple[int, ...]:
    """Bits per second by level; of a network that is no grid, by rail."""
    where = f"{path}: rates"
    if not isinstance(value, dict):
        return (_rate(value, where),) * (len(sizes) if sizes else 1)
    return tuple(_per_level(value, len(sizes or value), where, _rate))


def _rate(value: Any, where: str) -> int:
    try:
        return parse_rate(str(value))
    except ValueError as error:
        raise TopologyError(f"{where}: {error}") from error


def _per_level(
    value: Any, num_levels: int, where: str, parse_item: Callable[[Any, str], Any]
) -> list[Any]:
    levels = list(range(num_levels))
    if not isinstance(value, dict) or not all(_is_number(key) for key in value):
        raise TopologyError(f"{where}: expected a mapping from each level, {levels}")
    if sorted(value) != levels:
        raise TopologyError(f"{where}: expected the levels {levels}, not {sorted(value)}")
    return [parse_item(value[level], f"{where}: {level}") for level in levels]


def _each_once(names: Sequence[str], where: str) -> tuple[str, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TopologyError(f"{where}: {', '.join(twice)} is there twice")
    return tuple(names)


def _is_number(value: Any) -> bool:
    """Whether it is a number from 0; YAML's true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
