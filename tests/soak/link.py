"""A member's side of `members.Job`: what it reports, and what it is told."""

import faulthandler
import os
import signal
import time
from multiprocessing.connection import Client
from typing import Any

from soak.faults import Failure

REPORT_INTERVAL_S = 0.02


class Link:
    """Connects to the job; SIGUSR1 writes all stacks to stderr from then on."""

    def __init__(self, path: str) -> None:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        self._connection = Client(path)
        self._reported_at = 0.0

    def progress(self, count: int) -> None:
        """That this has been reached; not every one is passed on."""
        if time.monotonic() - self._reported_at >= REPORT_INTERVAL_S:
            self._connection.send(("progress", (count, None)))
            self._reported_at = time.monotonic()

    def report(self, kind: str, value: Any = None) -> None:
        self._connection.send((kind, value))

    def wrong(self, failure: Failure, text: str) -> None:
        """Ends the whole job with this error, and this process."""
        self._connection.send(("wrong", (failure.value, text)))
        os._exit(1)

    def next_command(self) -> tuple[Any, ...]:
        command: tuple[Any, ...] = self._connection.recv()
        return command

    def has_command(self) -> bool:
        return self._connection.poll()
