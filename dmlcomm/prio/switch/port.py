"""A port that the switch schedules: its queues, its classifier, and what they have counted."""

import contextlib
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from dmlcomm.prio.switch import queues
from dmlcomm.prio.switch.filters import BpfClassifier, Classifier, U32Classifier
from dmlcomm.prio.switch.settings import Settings
from dmlcomm.prio.switch.window import WindowSettings, drain_of


class Port:
    """Schedules from its construction on. Raises SwitchError, NetlinkError or OSError; then the
    port is as it was."""

    def __init__(self, ip: IPRoute, index: int, name: str, settings: Settings) -> None:
        self.index = index
        self.name = name
        self._ip = ip
        self._settings = settings
        self.before = queues.find_before(ip, index, name)
        self.rate_bps = queues.rate_of(name, self.before, settings.rate_bps)
        try:
            queues.take(
                ip,
                index,
                self.before,
                self.rate_bps,
                settings.num_queues,
                settings.unmarked_share,
            )
            self.classifier = self._classify()
        except BaseException:
            with contextlib.suppress(NetlinkError):
                queues.give_back(ip, index, self.before)
            raise

    def _classify(self) -> Classifier:
        s = self._settings
        is_bpf = s.classifier == BpfClassifier.name
        window = WindowSettings(
            s.num_queues,
            s.slide_bytes,
            s.idle_ms * 1_000_000,
            drain_of(self.rate_bps) if is_bpf else None,
        )
        if is_bpf:
            return BpfClassifier(self._ip, self.index, s.mark, window)
        return U32Classifier(self._ip, self.index, self.name, s.mark, window)

    def is_in_place(self) -> bool:
        """Whether the queues are still there; somebody may have put others in their place."""
        return queues.has_queues(self._ip.get_qdiscs(index=self.index))

    def release(self) -> None:
        """Puts back what was there, unless somebody has put others there. Raises NetlinkError."""
        self.forget()
        if self.is_in_place():
            queues.give_back(self._ip, self.index, self.before)

    def forget(self) -> None:
        """The queues are gone."""
        self.classifier.close()

    def status(self) -> dict[str, Any]:
        """As `dmlcomm switch status --json` shows it."""
        s, state = self._settings, self.classifier.state()
        counts = queues.counters(self._ip, self.index)
        last = s.mark.num_layers - 1
        found = []
        for queue in range(s.num_queues):
            layer = min(state.base + queue, last)
            tickets = s.mark.tickets(layer)
            if queue == s.num_queues - 1 and layer < last:
                tickets += " and later"
            found.append({"tickets": tickets} | vars(counts[queues.FIRST_QUEUE + queue]))
        moves_us = self.classifier.moves_us()
        return {
            "port": self.name,
            "rate_bps": self.rate_bps,
            "window": {
                "first": s.mark.tickets(min(state.base, last)),
                "last": s.mark.tickets(min(state.base + s.num_queues - 1, last)),
                "is_rising": state.is_rising,
                "moves": state.num_moves,
                "move_us": round(sum(moves_us) / len(moves_us)) if moves_us else None,
            },
            "queues": found,
            "unmarked": vars(counts[queues.UNMARKED]),
            "layers": [
                {"tickets": s.mark.tickets(layer), "bytes": num_bytes}
                for layer, num_bytes in enumerate(state.layer_bytes[: s.mark.num_layers])
                if num_bytes
            ],
        }
