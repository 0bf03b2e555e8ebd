"""Loads a user's update rule, named as "module:function"."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

# (weights, gradient, state, step) -> None: changes weights and state in place; the arrays are 1-d.
# An attribute state_arrays has the names of arrays in `state` that checkpoints keep.
Rule = Callable[[Any, Any, dict[str, Any], int], None]

NUM_ARGUMENTS = 4


def load_rule(name: str) -> Rule:
    """The function. Modules of the current directory are found. Raises ValueError."""
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ValueError(f'rule "{name}": expected module:function, as my_rules:momentum')
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f'rule "{name}" cannot be loaded: {error}') from error
    check_rule(function, name)
    return function  # type: ignore[no-any-return]


def check_rule(function: Any, name: str) -> None:
    """Raises ValueError unless it can be called as a rule."""
    try:
        inspect.signature(function).bind(*range(NUM_ARGUMENTS))
    except TypeError as error:
        raise ValueError(
            f'rule "{name}" must take (weights, gradient, state, step): {error}'
        ) from error
    names = getattr(function, "state_arrays", ())
    legal = isinstance(names, tuple | list) and all(isinstance(n, str) and n for n in names)
    if not legal or len(set(names)) != len(names):
        raise ValueError(
            f'rule "{name}" has state_arrays = {names!r}: expected a tuple of different names, as '
            f'("momentum",)'
        )
