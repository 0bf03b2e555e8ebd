"""The edges of a node in its tree: to its parent, and to the workers and proxies below."""

from typing import Any

from dmlcomm import _core
from dmlcomm.ps.server.rates import Counters, Rates


class Edges:
    """Bytes of elements, and their rates. Any thread may call."""

    def __init__(self, core: _core.PsServer, uplink: _core.ProxyUplink) -> None:
        self._core = core
        self._uplink = uplink
        self._rates = Rates()

    def read_rates(self) -> None:
        """They are then those since the call before."""
        self._rates.read(self._counters(self._core.status()))

    def status(self, core_status: dict[str, Any]) -> list[dict[str, Any]]:
        """Plain data, the parent first; of those below, the ones that are connected."""
        return [
            self._describe(to, counters) for to, counters in self._counters(core_status).items()
        ]

    def _counters(self, core_status: dict[str, Any]) -> dict[str, Counters]:
        parent = (self._uplink.bytes_sent, self._uplink.bytes_received)
        return {"parent": parent} | {
            _name(worker["worker"]): (worker["bytes_out"], worker["bytes_in"])
            for worker in core_status["workers"]
            if worker["connected"]
        }

    def _describe(self, to: str, counters: Counters) -> dict[str, Any]:
        sent_per_second, received_per_second = self._rates.of(to)
        return {
            "to": to,
            "bytes_sent": counters[0],
            "bytes_received": counters[1],
            "sent_per_second": sent_per_second,
            "received_per_second": received_per_second,
        }


def _name(number: int) -> str:
    place = number - _core.FIRST_PROXY
    return f"worker {number}" if place < 0 else f"proxy {place}"
