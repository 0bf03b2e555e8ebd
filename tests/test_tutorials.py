"""The commands of the tutorials run as they are written, and say what the page shows."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import console, warm_python
from helpers.parameter_servers import clean_environment

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorials.md").read_text()
README = (ROOT / "README.md").read_text()

# What the page calls `python`: with torch loaded already.
PYTHON = f"""#!{sys.executable} -S
import os, sys
sys.path.insert(0, {str(Path(warm_python.__file__).parent)!r})
from warm_python import script_of
command = {{command!r}} + [script_of(sys.argv[1:])]
os.execv(command[0], command)
"""

# Labs of other tests may be there, so that of the page has another name.
DMLCOMM = f"""#!/bin/bash
if [ "$1" = lab ]; then set -- lab "$2" --name "$LAB" "${{@:3}}"; fi
exec {sys.executable} -m dmlcomm "$@"
"""


def scripts() -> Iterator[tuple[str, str]]:
    """Those whose first line is their name."""
    for text in (README, PAGE):
        for body in console.fences(text, "python"):
            if name := re.match(r"# (\w+\.py)\n", body):
                yield name[1], body


@pytest.fixture
def shell(lab_is_possible) -> Iterator[console.Shell]:
    *start_warm, _ = warm_python.warm_command("")
    programs = {"python": PYTHON.format(command=start_warm), "dmlcomm": DMLCOMM}
    with tempfile.TemporaryDirectory(prefix="dmlcomm-test-") as path:
        folder = Path(path)
        (folder / "bin").mkdir()
        for program, text in programs.items():
            (folder / "bin" / program).write_text(text)
            (folder / "bin" / program).chmod(0o755)
        for script, text in scripts():
            (folder / script).write_text(text)
        environment = clean_environment(
            PATH=f"{folder}/bin:{os.environ['PATH']}",
            PYTHONPATH=str(ROOT),
            OMP_NUM_THREADS="1",
            COLUMNS="110",
            LAB=f"tutorials-{os.getpid()}",
        )
        try:
            with console.Shell(folder, environment) as shell:
                yield shell
        finally:
            down = [str(folder / "bin" / "dmlcomm"), "lab", "down"]
            subprocess.run(down, env=environment, stderr=subprocess.DEVNULL, check=False)


def labs() -> list[list[console.Step]]:
    """The page's commands, in parts that end with the end of a lab."""
    parts: list[list[console.Step]] = [[]]
    for step in console.steps(PAGE):
        parts[-1].append(step)
        if step.command == "dmlcomm lab down":
            parts.append([])
    assert parts.pop() == []
    return parts


@pytest.mark.parametrize(
    ("shown", "said", "is_alike"),
    [
        ("│ eth0 │ 12.9 MB │ 3 B/s │", "┃ eth0  ┃ 12.2 MB ┃ 1 kB/s  ┃", True),
        ("│ eth0 │ 12.9 MB │ 3 B/s │", "│ eth0 │ 129 MB │ 3 B/s │", False),
        ("│ eth0 │ 12.9 MB │ 3 B/s │", "│ eth0 │ 12.9 kB │ 3 B/s │", False),
        ("│ eth0 │ 12.9 MB │ 3 B/s │", "│ eth1 │ 12.9 MB │ 3 B/s │", False),
        ("small: 26 ms, both: 444 ms", "small: 400 ms, both: 1.2 s", True),
        ("small: 26 ms, both: 444 ms", "small: 444 ms, both: 444 ms", False),
        ("small: 438 ms, both: 438 ms", "small: 9 ms, both: 8 ms", True),
        ("10 MB at 3 ms; …", "10 MB at 5 ms; and 7 MB", True),
        ("10 MB at 3 ms; …", "20 MB at 5 ms; and 7 MB", False),
    ],
)
def test_figures_of_the_page_are_compared_where_they_do_not_depend_on_the_machine(
    shown, said, is_alike
):
    assert console.missing(console.Step("", [shown]), f"another line\n{said}") == (
        [] if is_alike else [shown]
    )


@pytest.mark.timeout(600)  # each command may take a while on a machine that has other work
@pytest.mark.parametrize("part", labs(), ids=["flat", "bcube"])
def test_commands_of_the_page_say_what_it_shows(shell, part):
    assert sum(len(step.shown) for step in part) > 10
    for step in part:
        code, output = shell.run(step)
        text = f"{step.command}:\n{output}"
        assert code == 0, text
        assert console.missing(step, output) == [], text
