"""The priority window: which layers the queues of a port are for.

Source: "TensorExpress: In-Network Communication Scheduling for Distributed Deep Learning" (2020),
section III. There are more layers than queues. The window has one layer per queue, from `base` on;
queue 0 is served first. Layers above the window share the lowest queue.

Back-propagation ends layer after layer, so packets come in descending order, and layer 0, which the
next iteration needs first, comes last:

- Reactive sliding: a packet of a layer below the window moves it down to that layer.
- Proactive sliding: when `slide_bytes` have left the highest queue, the window moves one layer
  down, so the next layer finds an empty highest queue.
- Rising: once layer 0 has passed, what is left are layers that are needed later. When `slide_bytes`
  of other layers have come since a packet of the highest queue, the window moves one layer up. Then
  packets of a layer pass its earlier ones, and TCP sends these again. So while more than
  `slide_bytes` wait, it moves only for a layer above it. With `drain` None that is not known.
- A packet below the window, but not of layer 0, ends rising: the next iteration has begun.
- Packets without payload are put into queues, and change nothing: they have the mark that their
  connection had when it last sent bytes.
- A port that has carried no marked packet for `idle_ns` begins anew, with the next layer to come.

`program` is the same in the kernel's instructions.
"""

from dataclasses import dataclass

# Rates are in bytes per 2^20 ns (about a millisecond), so that the kernel's program shifts.
DRAIN_SHIFT = 20
# Pauses are compared in units of 2^10 ns: the program's numbers have 32 bits.
IDLE_SHIFT = 10
# Of an Ethernet frame. Shorter ones have next to no payload.
LEAST_BYTES = 128


@dataclass(frozen=True)
class WindowSettings:
    """How a window moves.

    Attributes:
        num_queues: of a port, each for one layer of the window.
        slide_bytes: after which the window moves proactively, and rises.
        idle_ns: after which a port begins anew.
        drain: bytes that the port sends in 2^20 ns. Then packets are seen when they come, and those
            that have left are reckoned. None: packets are seen when they leave.
    """

    num_queues: int
    slide_bytes: int
    idle_ns: int
    drain: int | None


def drain_of(rate_bps: int) -> int:
    """Bytes in 2^20 ns at a rate."""
    return rate_bps * (1 << DRAIN_SHIFT) // 8_000_000_000


def queue_of(layer: int, base: int, lowest: int) -> int:
    """Layers below the window are as urgent as its first. ``lowest``: the last queue."""
    return min(max(layer - base, 0), lowest)


class PriorityWindow:
    """The window of one port.

    Example:
        >>> window = PriorityWindow(WindowSettings(4, 1 << 16, 10**9, None))
        >>> [window.classify(layer, 1500, now_ns=1) for layer in (4, 3, 2, 1, 4, 0, 4)]
        [0, 0, 0, 0, 3, 0, 3]
    """

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self.base = 0
        self.is_rising = False
        self.num_moves = 0
        self._last_ns: int | None = None
        self._top_bytes = 0  # given to the highest queue since the window moved
        self._backlog = 0  # of these and earlier ones, not sent
        self._waiting = 0  # bytes of all layers, not sent
        self._behind = 0  # bytes of other layers since the last packet of the highest queue

    @property
    def waits_to_rise(self) -> bool:
        """It rises as soon as no packets that wait forbid it."""
        return self.is_rising and self._behind >= self._settings.slide_bytes

    def classify(self, layer: int, num_bytes: int, now_ns: int) -> int:
        """The queue of a packet, which may move the window."""
        lowest = self._settings.num_queues - 1
        if num_bytes < LEAST_BYTES:
            return queue_of(layer, self.base, lowest)
        self._arrive(layer, num_bytes, now_ns)
        if layer == 0:
            self.is_rising = True
        queue = queue_of(layer, self.base, lowest)
        if layer == self.base:
            self._count_top(num_bytes)
        elif self.is_rising:
            self._count_behind(num_bytes, is_above=layer - self.base > lowest)
        return queue

    def _arrive(self, layer: int, num_bytes: int, now_ns: int) -> None:
        passed = None if self._last_ns is None else now_ns - self._last_ns
        self._last_ns = now_ns
        idle = self._settings.idle_ns >> IDLE_SHIFT
        if passed is None or passed >> IDLE_SHIFT > idle:
            self._backlog = self._waiting = 0
            self._move_down(layer)
        elif layer < self.base:
            self._move_down(layer)
        if self._settings.drain is not None:
            drained = (passed or 0) * self._settings.drain >> DRAIN_SHIFT
            self._backlog = max(0, self._backlog - drained)
            self._waiting = max(0, self._waiting - drained) + num_bytes

    def _count_top(self, num_bytes: int) -> None:
        self._behind = 0
        self._top_bytes += num_bytes
        if self._settings.drain is not None:
            self._backlog += num_bytes
        has_left = self._top_bytes - self._backlog
        if not self.is_rising and self.base > 0 and has_left >= self._settings.slide_bytes:
            self._move(self.base - 1)

    def _count_behind(self, num_bytes: int, *, is_above: bool) -> None:
        self._behind += num_bytes
        waited = self._waiting - num_bytes  # below 0 if it is not known
        may_rise = is_above or waited <= self._settings.slide_bytes
        if may_rise and self.waits_to_rise:
            self._move(self.base + 1)

    def _move_down(self, base: int) -> None:
        self.is_rising = False
        self._move(base)

    def _move(self, base: int) -> None:
        self.base = base
        self.num_moves += 1
        self._top_bytes = 0
        self._behind = 0
