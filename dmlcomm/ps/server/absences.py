"""Workers whose proxy was lost: they may come by another way, or are given up."""

import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dmlcomm.ps.server.hosts import Probe, answers, patience_s

# A worker that is away for so long may be on a host that went dark.
PROBE_AFTER_S = 1.0


@dataclass
class _Absence:
    since: float
    until: float
    address: str  # of the proxy that the worker was at


class Absences:
    """One thread calls at a time."""

    def __init__(self, return_timeout_s: float) -> None:
        self._return_timeout_s = return_timeout_s
        self._workers: dict[int, _Absence] = {}
        self._answering: set[str] = set()  # hosts that have taken or refused a connection
        self._probes: dict[str, Probe] = {}  # by address

    def __len__(self) -> int:
        return len(self._workers)

    def begin(self, worker: int, address: str) -> None:
        """`address`: of the proxy that it was at."""
        now = time.monotonic()
        self._workers[worker] = _Absence(now, now + self._return_timeout_s, address)

    def end(self, worker: int) -> bool:
        """It has come, or is waited for no more; whether it was away."""
        return self._workers.pop(worker, None) is not None

    def forgive(self, slept_s: float) -> None:
        """This process has slept so long, and heard nobody."""
        for absence in self._workers.values():
            absence.until += slept_s
        for probe in self._probes.values():
            probe.begin_anew()

    def take_overdue(self, heard: Collection[str]) -> Iterator[tuple[int, str]]:
        """Workers to give up, each with the reason, which are away no more.

        Args:
            heard: addresses of proxies that were heard just now. If there is none of another host,
                the network of this server may be cut, and no host is taken for dark.
        """
        now = time.monotonic()
        self._probe(now)
        hosts = set(map(_host_of, heard))
        for worker, absence in list(self._workers.items()):
            probe = self._probes.get(absence.address)
            if now >= absence.until:
                why = f"it did not register again within {self._return_timeout_s:g} s"
            elif probe and probe.is_dark() and hosts - {_host_of(absence.address)}:
                why = f"its host does not answer at {absence.address}"
            else:
                continue
            del self._workers[worker]
            yield worker, why

    def learn_whether_it_answers(self, address: str) -> None:
        """A host whose firewall lets nothing in is never taken for dark."""
        host = _host_of(address)

        def ask() -> None:
            if answers(address):
                self._answering.add(host)

        if host not in self._answering:
            threading.Thread(target=ask, daemon=True).start()

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()

    def _probe(self, now: float) -> None:
        wanted = {
            absence.address
            for absence in self._workers.values()
            if now - absence.since > PROBE_AFTER_S and _host_of(absence.address) in self._answering
        }
        for address in self._probes.keys() - wanted:
            self._probes.pop(address).close()
        for address in wanted - self._probes.keys():
            self._probes[address] = Probe(address, patience_s())


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
