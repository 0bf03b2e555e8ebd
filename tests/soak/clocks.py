"""Processes whose time of day jumps, while the clock since the start of the machine goes on.

clocks = Clocks(folder)
process = Popen(command, env=clocks.environment("server 0"))
clocks.jump("server 0", 3600.0)
"""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("jumping_clock.c")


class Clocks:
    """One per process, by name; a process that is started again has that of the one before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def environment(self, name: str) -> dict[str, str]:
        file = self._file(name)
        if not file.exists():
            file.write_bytes(bytes(8))
        return {"LD_PRELOAD": f"{_library().name}/clock.so", "SOAK_CLOCK_FILE": str(file)}

    def jump(self, name: str, seconds: float) -> None:
        """Its time is wrong by so much from now on."""
        with self._file(name).open("r+b") as file:
            file.write(round(seconds * 1e9).to_bytes(8, "little", signed=True))

    def _file(self, name: str) -> Path:
        return self._folder / f"clock-{name.replace(' ', '-')}"


@functools.cache
def _library() -> "tempfile.TemporaryDirectory[str]":
    """The folder of what is preloaded, which goes at the end of this process."""
    folder = tempfile.TemporaryDirectory(prefix="dmlcomm-clock-")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", f"{folder.name}/clock.so", str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True)
    return folder
