"""The command of a benchmark made of experiments: its options, and one table at the end."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.arguments import comma_list
from benchmarks.row import Row, conclude


def parser_of(
    module: str, description: str, experiments: Mapping[str, object], quick: str
) -> argparse.ArgumentParser:
    """The options that all have.

    Args:
        module: for ``python -m``.
        description: the documentation of the module; its first line is shown.
        experiments: by name.
        quick: what ``--quick`` measures.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--only",
        type=comma_list(experiments, "experiment"),
        default=list(experiments),
        help="a comma list of experiments",
    )
    parser.add_argument("--json", type=Path, help="file for JSON lines")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    return parser


def run_experiments(
    options: argparse.Namespace,
    experiments: Mapping[str, Callable[[Any], list[Row]]],
    settings: Any,
) -> None:
    """Those of ``options.only``, one after the other. Exits as `conclude` does."""
    rows: list[Row] = []
    for name in options.only:
        report.console.print(f"{name} …")
        rows += experiments[name](settings)
    conclude("Times in ms.", rows, options.json, options.strict)
