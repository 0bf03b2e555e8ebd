"""Names of a package that are imported when they are first used: it starts without torch."""

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    package: str, public: Collection[str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its name.
        public: its ``__all__``.
        homes: name -> the module that has it. A subfolder is its own home.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return find, lambda: list(public)
