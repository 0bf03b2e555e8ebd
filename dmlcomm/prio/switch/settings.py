"""The options of a switch."""

from dataclasses import dataclass

from dmlcomm.prio.switch.marks import Mark

MOST_QUEUES = 7  # htb has 8 priorities, and packets without a mark have the last


@dataclass(frozen=True)
class Settings:
    """Of a switch.

    Attributes:
        bridge: name of the interface.
        mark: that packets carry.
        num_queues: of every port, from 1 to 7.
        slide_bytes, idle_ms: see `window`.
        unmarked_share: of a port's rate that packets without a mark have in any case, from 0.01.
        rate_bps: of every port; None: of its token bucket, or its driver's.
        classifier: "ebpf" or "u32".
    """

    bridge: str
    mark: Mark = Mark.DSCP
    num_queues: int = 4
    slide_bytes: int = 64 * 1024
    idle_ms: int = 200
    unmarked_share: float = 0.1
    rate_bps: int | None = None
    classifier: str = "ebpf"
