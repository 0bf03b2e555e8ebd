"""Entries of YAML files, each checked when it is read."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

MOST_NUMBER = 1e12
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class ScenarioError(ValueError):
    """A scenario is not legal. The text says where, what is expected, and what is there."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A key that is there twice is an error, where YAML takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                mark = node.value[i][0].start_mark
                raise ScenarioError(f'line {mark.line + 1}: "{key}" is there twice')
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def load_yaml(path: str) -> Any:
    """What a file holds. Raises ScenarioError."""
    try:
        with open(path, encoding="utf-8") as file:
            return yaml.load(file, _Loader)
    except ScenarioError as error:
        raise ScenarioError(f"{path}, {error}") from None
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # also of a text that only looks like a date
        raise ScenarioError(f"{path} is no YAML: {error}") from error


class Fields:
    """The entries of a mapping of the file, each checked when it is read."""

    def __init__(self, content: Any, where: str, keys: tuple[str, ...]) -> None:
        self.where = where
        if not isinstance(content, Mapping):
            raise ScenarioError(f"{where}: expected keys and values ({', '.join(keys)})")
        for key in content:
            if key not in keys:
                raise ScenarioError(f'{where} has no "{key}": expected {", ".join(keys)}')
        self._content = content

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def get(self, key: str, default: Any) -> Any:
        return self._content.get(key, default)

    def _required(self, key: str, default: Any, example: str) -> Any:
        found = self._content.get(key, default)
        if found is None:
            raise ScenarioError(f'{self.where} has no "{key}": give it, as {example}')
        return found

    def items(self, key: str) -> list[Any]:
        found = self._content.get(key, [])
        if not isinstance(found, list):
            raise ScenarioError(f'"{key}" of {self.where}: expected a list')
        return found

    def text(self, key: str) -> str:
        examples = {
            "topology": "flat:4,2",
            "op": "all_reduce",
            "rate": "200mbit",
            "kind": "ring",
            "size": "12.5MB",
        }
        return str(self._required(key, None, examples[key]))

    def one_of(self, key: str, known: Sequence[str]) -> str:
        """By default the first."""
        found = str(self._content.get(key, known[0]))
        if found not in known:
            expected = ", ".join(known)
            raise ScenarioError(f'"{key}" of {self.where} is {found}: expected one of {expected}')
        return found

    def number(
        self, key: str, default: float, least: float = 0, most: float = MOST_NUMBER
    ) -> float:
        found = self._content.get(key, default)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if not is_number or not least <= found <= most:
            raise ScenarioError(
                f'"{key}" of {self.where}: expected a number from {least:g} to {most:g}, not '
                f"{found}"
            )
        return float(found)

    def whole(self, key: str, default: int, least: int, most: int | None = None) -> int:
        found = self._content.get(key, default)
        if type(found) is not int or found < least or (most is not None and found > most):
            end = "" if most is None else f" to {most}"
            raise ScenarioError(
                f'"{key}" of {self.where}: expected a whole number from {least}{end}, not {found}'
            )
        return found

    def seconds(self, key: str, default: float | None = None) -> float:
        found = self._required(key, default, "100ms")
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|ms|us)?", str(found))
        if match is None:
            raise ScenarioError(
                f'"{key}" of {self.where}: expected seconds, as 1.5 or 100ms, not {found}'
            )
        return float(match[1]) * SECONDS[match[2] or "s"]

    def numbers(self, key: str, known: range, least: int, noun: str) -> list[int]:
        """A list of some of ``known``, ``least`` (1 or 2) of them or more, as numbers or as 0-99;
        by default all. ``noun`` says what they are."""
        where = f'"{key}" of {self.where}'
        given = self._content.get(key, list(known))
        if not isinstance(given, list):
            raise ScenarioError(f"{where}: expected a list of {noun}s, not {given}")
        found: list[int] = []
        for item in given:
            match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", str(item))
            ends = [item] if match is None else [int(match[1]), int(match[2])]
            for number in ends:
                check_number(number, where, known)
            found += range(ends[0], ends[-1] + 1)
        if len(found) < least:
            expected = f"two {noun}s or more" if least == 2 else f"a {noun} or more"
            raise ScenarioError(f"{where}: expected a list of {expected}, not {given}")
        if len(set(found)) < len(found):
            raise ScenarioError(f"{where} names a {noun} twice: {given}")
        return found


def check_number(number: Any, where: str, known: range) -> None:
    """Raises ScenarioError for what is not one of ``known``."""
    if type(number) is not int or number not in known:
        raise ScenarioError(
            f"{where}: expected numbers from {known[0]} to {known[-1]}, not {number}"
        )
