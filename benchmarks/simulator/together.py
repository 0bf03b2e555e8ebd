"""Processes that end together: when one of them fails, and when their time is over."""

import subprocess
import threading
from types import TracebackType


class Together:
    """Kills all of its processes as soon as one has failed, or a deadline has passed.

    So a wait for the end of their output, or for a line of it, needs no deadline of its own: it
    ends when the process is killed. The first cause stays. All methods may be called by any thread.

    Args:
        deadline_s: from the begin of the block on, for all of them.

    Example:
        with Together(60) as together:
            process = together.add(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            output = process.stdout.read()
            together.check(process, "command")
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._timer = threading.Timer(deadline_s, self._is_late)
        self._timer.daemon = True
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._processes: list[subprocess.Popen[str]] = []
        self._cause = ""

    def __enter__(self) -> "Together":
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._kill()

    @property
    def cause(self) -> str:
        """Why all were killed; empty if they were not."""
        with self._lock:
            return self._cause

    def add(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """The process itself, which is killed at once if the others were."""
        with self._lock:
            self._processes.append(process)
            if self._cause:
                process.kill()
        return process

    def check(self, process: subprocess.Popen[str], name: str) -> None:
        """Waits for the end of a process; ``name``: what failed if its exit code is not 0."""
        if (code := process.wait()) != 0:
            self.fail(f"{name} failed with exit code {code}: see the output above")

    def fail(self, cause: str) -> None:
        """Kills all, for this cause unless there was one before."""
        with self._lock:
            self._cause = self._cause or cause
        self._kill()

    def _is_late(self) -> None:
        self.fail(f"the time of {self._deadline_s:g} s is over")

    def _kill(self) -> None:
        with self._lock:
            for process in self._processes:
                process.kill()  # does nothing to one that has ended and was waited for
