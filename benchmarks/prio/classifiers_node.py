"""The switch of `benchmarks.prio.classifiers`: frames leave by one of its ports.

classifiers_node.py CASE      a JSON object with the fields of `Case`

Frames are given to the port by a packet socket, so that the call of `sendto` contains what the
kernel does with them: filter, queue, and the way to the host, which drops them. With u32 filters
the daemon's part runs in this process, too, and is timed by itself. Prints a JSON object of lists,
by contestant: one entry a round.
"""

import contextlib
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pyroute2 import IPRoute

from dmlcomm.prio.switch.marks import dscp_of_layer
from dmlcomm.prio.switch.port import Port
from dmlcomm.prio.switch.settings import Settings

NONE = "none"  # the port as the lab has it
CLASSIFIERS = ("ebpf", "u32")

PORT, BRIDGE = "port0", "br0"
ETH_P_IP = 0x0800
FRAME_BYTES = 300
LAYER, LOWER_LAYER = 30, 20
# The window stays unless a packet is below it, and begins anew after a pause.
SLIDE_BYTES = 1 << 30
IDLE_MS = 20
FRAMES_AT_ONCE = 200  # then the daemon has its turn; they fit into its tap
DEADLINE_S = 5.0


@dataclass(frozen=True)
class Case:
    """Frames and moves of the window in a round; one more round goes before."""

    frames: int
    moves: int
    rounds: int


class Switch:
    """One port, with a classifier or as it was."""

    def __init__(self, contestant: str, ip: IPRoute) -> None:
        self._port: Port | None = None
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        if contestant != NONE:
            settings = Settings(
                BRIDGE, slide_bytes=SLIDE_BYTES, idle_ms=IDLE_MS, classifier=contestant
            )
            self._port = Port(ip, socket.if_nametoindex(PORT), PORT, settings)

    def close(self) -> None:
        self._socket.close()
        if self._port is not None:
            self._port.release()

    def ns_per_frame(self, count: int) -> dict[str, float]:
        """Of frames of one layer: until the port has them, and what the daemon does beside."""
        frame = _frame(LAYER)
        sent_ns = daemon_ns = 0
        for _ in range(count // FRAMES_AT_ONCE):
            begin = time.perf_counter_ns()
            for _ in range(FRAMES_AT_ONCE):
                self._send(frame)
            between = time.perf_counter_ns()
            self._follow()
            sent_ns += between - begin
            daemon_ns += time.perf_counter_ns() - between
        return {"send_ns": sent_ns / count, "daemon_ns": daemon_ns / count}

    def reactions_us(self, count: int) -> list[float]:
        """From when a packet below the window is sent until the queues are those of the window."""
        found = []
        for _ in range(count):
            time.sleep(2 * IDLE_MS / 1e3)  # a pause, after which the window begins anew
            self._send(_frame(LAYER))
            self._follow_to(LAYER)
            frame = _frame(LOWER_LAYER)
            begin = time.perf_counter_ns()
            self._send(frame)
            self._follow_to(LOWER_LAYER)
            found.append((time.perf_counter_ns() - begin) / 1e3)
        return found

    def _send(self, frame: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # the queue is full
            self._socket.sendto(frame, socket.MSG_DONTWAIT, (PORT, ETH_P_IP))

    def _follow(self) -> None:
        """What the daemon does when the kernel has told it of packets, if it has a part."""
        descriptor = self._port and self._port.classifier.descriptor
        while descriptor is not None and select.select([descriptor], [], [], 0)[0]:
            assert self._port is not None
            self._port.classifier.ready()

    def _follow_to(self, layer: int) -> None:
        assert self._port is not None
        classifier = self._port.classifier
        deadline = time.monotonic() + DEADLINE_S
        while classifier.descriptor is not None and classifier.state().base != layer:
            if not select.select([classifier.descriptor], [], [], DEADLINE_S)[0]:
                break
            classifier.ready()
            if time.monotonic() > deadline:
                break

    def base(self) -> int | None:
        return None if self._port is None else self._port.classifier.state().base

    def counted(self) -> int:
        """Bytes of layer `LAYER` that the classifier has seen."""
        assert self._port is not None
        return self._port.classifier.state().layer_bytes[LAYER]


def _frame(layer: int) -> bytes:
    """For no host: the one behind the port drops it."""
    head = (0x45, dscp_of_layer(layer) << 2, FRAME_BYTES - 14, 0, 0, 64, 6, 0, 1, 2)
    packed = bytes(12) + struct.pack(">HBBHHHBBHII", ETH_P_IP, *head)
    return packed.ljust(FRAME_BYTES, b"\0")


@contextlib.contextmanager
def switched(contestant: str, ip: IPRoute) -> Iterator[Switch]:
    switch = Switch(contestant, ip)
    try:
        yield switch
    finally:
        switch.close()


def measure(case: Case) -> dict[str, dict[str, list[float]]]:
    """Raises RuntimeError if a classifier does not see what leaves, or its window stays."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in (NONE, *CLASSIFIERS)}
    with IPRoute(groups=0) as ip:
        for number in range(case.rounds + 1):
            for name, lists in found.items():
                with switched(name, ip) as switch:
                    results = switch.ns_per_frame(case.frames)
                    if name != NONE:
                        results |= _checked_reactions(name, switch, case)
                for key, value in results.items() if number > 0 else ():
                    lists.setdefault(key, []).append(value)
    return found


def _checked_reactions(name: str, switch: Switch, case: Case) -> dict[str, float]:
    seen = switch.counted() / (case.frames * FRAME_BYTES)
    if not 0.5 < seen < 1.1:
        raise RuntimeError(f"{name} has seen {seen:.0%} of the bytes of layer {LAYER}")
    reactions = sorted(switch.reactions_us(case.moves))
    if switch.base() != LOWER_LAYER:
        raise RuntimeError(f"{name}: the window begins at {switch.base()}, not at {LOWER_LAYER}")
    return {"reaction_us": reactions[len(reactions) // 2]}


def main() -> None:
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))), flush=True)


if __name__ == "__main__":
    main()
