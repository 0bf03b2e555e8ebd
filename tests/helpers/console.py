"""Commands of a page's code fences, run one after the other in one shell."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from helpers.waiting import eventually

COMMAND_DEADLINE_S = 120.0


@dataclass
class Step:
    """A command, and the lines that the page shows behind it."""

    command: str
    shown: list[str]


def fences(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def steps(page: str) -> Iterator[Step]:
    """Of lines that begin with "$ "; those with a host in front ("all$ ") are for others."""
    for fence in fences(page, "console"):
        step = None
        for line in fence.splitlines():
            if line.startswith("$ "):
                if step:
                    yield step
                step = Step(line[2:], [])
            elif step and step.command.endswith("\\"):
                step.command += f"\n{line}"
            elif step:
                step.shown.append(line)
        if step:
            yield step


def missing(step: Step, output: str) -> list[str]:
    """What the page shows and the command has not said.

    Times and rates depend on the machine, and are alike; but what took less than half as long as
    something else of its line has to take less. Bytes may differ by a tenth, or by what peers send
    now and then to see each other. Lines may come in another order, as those of several hosts do.
    "…" stands for lines that are left out, or for the rest of a line.
    """
    said = output.splitlines()
    return [line for line in step.shown if not any(_are_alike(line, found) for found in said)]


_FIGURE = re.compile(r"(-?\d+(?:\.\d+)?) ?([kMG]?b/s|[kMG]?B/s|[kMG]?B|ms|us|s|%)(?!\w)")
_BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1}
_TOLERANCE, _BYTES_OF_BEATS = 0.1, 50e3


def _are_alike(shown: str, said: str) -> bool:
    begin, is_left_out, _ = _stable(shown).partition("…")
    text = _stable(said)
    if not (text.startswith(begin) if is_left_out else text == begin):
        return False
    sizes = zip(_amounts(shown, _BYTES), _amounts(said, _BYTES), strict=False)
    times = list(zip(_amounts(shown, _SECONDS), _amounts(said, _SECONDS), strict=False))
    has_sizes = all(
        abs(found - size) <= max(_TOLERANCE * size, _BYTES_OF_BEATS) for size, found in sizes
    )
    return has_sizes and all(
        found < found_later
        for time, found in times
        for later, found_later in times
        if time < later / 2
    )


def _amounts(line: str, units: Mapping[str, float]) -> list[float]:
    """Of the figures that have one of these units."""
    return [float(number) * units[unit] for number, unit in _FIGURE.findall(line) if unit in units]


def _stable(line: str) -> str:
    """Without times, rates, bytes, and the widths and borders of tables."""
    return " ".join(_FIGURE.sub("#", re.sub("[─━┏┓┗┛┡┩└┘├┤┳╇┴┃│╭╮╰╯]", " ", line)).split())


class Shell:
    """bash, in a folder and an environment; each command's output goes to a file of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.killpg(self._process.pid, signal.SIGKILL)  # with what was left in the background
        self._process.wait()

    def run(self, step: Step) -> tuple[int, str]:
        """Its exit code and what it has said, when it has ended.

        Of one that ends with "&": when it has said what the page shows.
        """
        self._count += 1
        output, end = (self._folder / f".{kind}{self._count}" for kind in ("output", "end"))
        assert self._process.stdin is not None
        # The code appears in its file at once.
        self._process.stdin.write(
            f"{{ {step.command}\n}} >{output} 2>&1\necho $? >{end}.new && mv {end}.new {end}\n"
        )
        self._process.stdin.flush()
        stays = step.command.endswith("&")

        def is_over() -> bool:
            return end.exists() and not (stays and missing(step, output.read_text()))

        try:
            eventually(is_over, step.command, COMMAND_DEADLINE_S)
        except AssertionError as late:
            raise AssertionError(f"{late}:\n{output.read_text()}") from None
        return int(end.read_text()), output.read_text()
