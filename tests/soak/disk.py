"""A small disk for checkpoints, which is filled to the last byte.

with Disk(folder) as disk:
    with disk.full():
        ...
"""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

SIZE = "32m"
BLOCK = bytes(1 << 16)


class Disk:
    """A context manager: a file system in memory at this folder.

    Attributes:
        is_small: whether there is one: it takes root. Else the folder is on the disk of the others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.is_small = False

    def __enter__(self) -> "Disk":
        self._folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "dmlcomm-soak", str(self._folder)]
        self.is_small = subprocess.run(mount, capture_output=True).returncode == 0
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_small:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """There is no room within the block, but what goes makes some."""
        ballast = self._folder / "ballast"
        with ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(BLOCK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        try:
            yield
        finally:
            ballast.unlink()
