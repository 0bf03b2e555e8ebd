"""`dmlcomm proxy serve`, to be killed or stopped."""

import subprocess
import sys

from helpers.parameter_servers import Popen, clean_environment
from helpers.waiting import DEADLINE_S


class ProxyProcess:
    """One that listens at the socket ``path``; the block kills it if it still runs.

    ``shape``: of the trees that it takes part in, as "chain". ``popen`` starts it, as on a host of
    a lab.
    """

    def __init__(
        self,
        path: str,
        shape: str,
        *arguments: str,
        popen: Popen = subprocess.Popen,
        **environment: str,
    ) -> None:
        command = [sys.executable, "-m", "dmlcomm", "proxy", "serve", "--socket", path]
        self.process = popen(
            [*command, "--tree", shape, "--log-level", "error", *arguments],
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert "listens at" in self.process.stdout.readline()

    def __enter__(self) -> "ProxyProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self.process.stdout.close()
