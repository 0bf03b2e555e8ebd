"""Rates of flows that share links."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dmlcomm import _core


def max_min_rates(
    paths: Sequence[Sequence[int]],
    capacities: Sequence[float],
    weights: Sequence[float] | None = None,
    priorities: Sequence[int] | None = None,
) -> list[float]:
    """Max-min fair rates of flows on links: no flow can be faster without taking from one that is
    not faster than it.

    Args:
        paths: by flow, the links that it passes, numbered from 0. One that it passes twice carries
            it twice. A flow that passes none has an infinite rate.
        capacities: by link, in bits per second, 0 to 1e18.
        weights: by flow, 1e-6 to 1e6, by default 1. Flows that have one bottleneck get rates as
            their weights are.
        priorities: by flow, 0 (first, the default) to 255. Flows share what those of smaller
            priorities leave.

    Returns:
        The rates in bits per second, by flow.

    Raises:
        ValueError: a path names a link that there is not, or a number is out of its range.
        TypeError: something is no number.

    Example:
        >>> dmlcomm.sim.max_min_rates([[0], [0, 1], [1]], capacities=[10e9, 20e9])
        [5000000000.0, 5000000000.0, 15000000000.0]
    """
    for name, given in (("weights", weights), ("priorities", priorities)):
        if given is not None and len(given) == 0 and len(paths) > 0:
            raise ValueError(f"there are {len(paths)} paths, but no {name}: give one to each")
    weights = [] if weights is None else weights
    priorities = [] if priorities is None else priorities
    try:
        return _core.max_min_rates(paths, capacities, weights, priorities)
    except (TypeError, OverflowError):
        _check_types(paths, capacities, weights, priorities)
        raise


def _check_types(
    paths: Iterable[Any],
    capacities: Iterable[Any],
    weights: Iterable[Any],
    priorities: Iterable[Any],
) -> None:
    """Raises TypeError with the first entry that is no number, ValueError if it is too large."""
    for name, given in (("paths", paths), ("capacities", capacities)):
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise TypeError(f"{name}: expected a list with one entry each, not {given!r}")
    for flow, path in enumerate(paths):
        if isinstance(path, str) or not isinstance(path, Iterable):
            raise TypeError(f"flow {flow} has the path {path!r}: expected a list of links")
        for link in path:
            _check(operator.index, link, f"flow {flow} names the link", "a whole number")
    for link, capacity in enumerate(capacities):
        _check(float, capacity, f"link {link} has the capacity", "bits per second")
    for flow, weight in enumerate(weights):
        _check(float, weight, f"flow {flow} has the weight", "a number")
    for flow, priority in enumerate(priorities):
        _check(operator.index, priority, f"flow {flow} has the priority", "a whole number")


def _check(convert: Callable[[Any], Any], value: Any, who: str, expected: str) -> None:
    if isinstance(value, str):
        raise TypeError(f"{who} {value!r}: expected {expected}")
    try:
        is_too_large = abs(convert(value)) >= 2**63 and convert is operator.index
    except TypeError:
        raise TypeError(f"{who} {value!r}: expected {expected}") from None
    except OverflowError:
        is_too_large = True
    if is_too_large:
        raise ValueError(f"{who} {value}: expected {expected} of 64 bits")
