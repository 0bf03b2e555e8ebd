"""Hosts that went dark: no kernel has answered there for as long as peers may be silent."""

import errno
import socket
import threading
import time

from dmlcomm import _core
from dmlcomm.ps.protocol import HEARTBEAT_TIMEOUT_S

# A host is asked so often, and each time has so long to answer.
PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_S = 1.0
# A host is dark after so many questions without an answer.
DARK_QUESTIONS = 3

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


def patience_s() -> float:
    """How long a host may be silent that has a lost proxy: with the silence of that, as a peer."""
    return max(3.0, float(_core.config()["peer_timeout_s"]) - HEARTBEAT_TIMEOUT_S)


class Probe:
    """Asks a host again and again, from construction until `close`."""

    def __init__(self, address: str, patience_s: float) -> None:
        self._address = address
        self._patience_s = patience_s
        self._closed = threading.Event()
        self.begin_anew()
        threading.Thread(target=self._run, name="dmlcomm-ps-probe", daemon=True).start()

    def begin_anew(self) -> None:
        """Silence counts from now on."""
        self._heard, self._misses = time.monotonic(), 0

    def is_dark(self) -> bool:
        silent_s = time.monotonic() - self._heard
        return self._misses >= DARK_QUESTIONS and silent_s > self._patience_s

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(PROBE_INTERVAL_S):
            if answers(self._address):
                self.begin_anew()
            else:
                self._misses += 1
