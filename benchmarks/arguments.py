"""Types of command line arguments that several benchmarks share."""

import argparse
from collections.abc import Callable, Collection
from typing import TypeVar

Item = TypeVar("Item")


def list_of(kind: Callable[[str], Item]) -> Callable[[str], list[Item]]:
    """An argparse type: a comma list of what ``kind`` reads."""
    return lambda text: [kind(item) for item in text.split(",")]


def comma_list(known: Collection[str], what: str) -> Callable[[str], list[str]]:
    """An argparse type: a comma list of names that are in ``known``; errors call one ``what``."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"there is no {what} {name!r}; one of {', '.join(known)}"
                )
        return names

    return parse
