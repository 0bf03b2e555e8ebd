"""Hosts that went dark: no kernel answers there, so no process of them comes back soon."""

import errno
import socket
import threading
import time

# A host is asked so often, for so long. It is dark after so many questions without an answer, over
# so many seconds.
PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_S = 1.0
DARK_QUESTIONS = 3
DARK_S = 3.0

_UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}


def answers(address: str) -> bool:
    """Whether the kernel at "host:port" takes or refuses a connection.

    It does so also for a process that is stopped or was killed. What fails on this side counts as
    an answer.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S):
            return True
    except TimeoutError:
        return False
    except OSError as error:
        return error.errno not in _UNREACHABLE


class Probe:
    """Asks a host again and again, from construction until `close`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._closed = threading.Event()
        self.begin_anew()
        threading.Thread(target=self._run, name="dmlcomm-ps-probe", daemon=True).start()

    def begin_anew(self) -> None:
        """What was not heard so far does not count."""
        self._heard, self._misses = time.monotonic(), 0

    def is_dark(self) -> bool:
        return self._misses >= DARK_QUESTIONS and time.monotonic() - self._heard > DARK_S

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(PROBE_INTERVAL_S):
            if answers(self._address):
                self.begin_anew()
            else:
                self._misses += 1
