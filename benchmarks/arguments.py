"""Types of command line arguments that several benchmarks share."""

import argparse
from collections.abc import Callable, Collection


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
