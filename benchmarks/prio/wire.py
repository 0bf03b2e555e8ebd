"""Who was on the wire when, by the marks of packets (docs/tickets.md)."""

import ctypes
import socket
import struct
import threading
from dataclasses import dataclass

from dmlcomm.prio.switch.filters import layer_of
from dmlcomm.prio.switch.marks import Mark

_ETH_P_ALL, _ETH_P_IP = 0x0003, 0x0800
_SOURCE = slice(26, 30)  # the sender's address in an Ethernet frame with IPv4
_SNAP_BYTES = 64
_BUFFER_BYTES = 1 << 20
_LOOK_S = 0.05
_SO_ATTACH_FILTER, _SO_TIMESTAMPNS = 26, 35
_LOAD_TYPE = (0x28, 0, 0, 0xFFFFF004)  # SKF_AD_OFF + SKF_AD_PKTTYPE
_PACKET_OUTGOING = 4
_NS_PER_S = 1e9


@dataclass(frozen=True)
class Packet:
    """``at_s`` is on the clock of `time.time`; ``host`` has sent it; ``layer`` None: no mark."""

    at_s: float
    host: int
    layer: int | None
    num_bytes: int


class Wire:
    """Notes the packets of this host's eth0 between `begin` and `end`, in a lab.

    Args:
        is_outgoing: those that leave; else those that come.
    """

    def __init__(self, is_outgoing: bool) -> None:
        self.packets: list[Packet] = []
        self._tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        code = _code(is_outgoing)
        array = ctypes.create_string_buffer(code, len(code))
        attached = struct.pack("HL", len(code) // 8, ctypes.addressof(array))
        self._tap.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
        self._tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._tap.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._tap.settimeout(_LOOK_S)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def begin(self) -> None:
        self._tap.bind(("eth0", _ETH_P_ALL))
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._tap.close()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                frame, notes, _, _ = self._tap.recvmsg(_SNAP_BYTES, 64)
            except TimeoutError:
                continue
            seconds, nanoseconds = struct.unpack("qq", notes[0][2])
            # Host i has the address that ends with i + 1.
            host, size = frame[_SOURCE][-1] - 1, int.from_bytes(frame[16:18], "big")
            at_s = seconds + nanoseconds / _NS_PER_S
            self.packets.append(Packet(at_s, host, layer_of(frame, Mark.DSCP), size))


def _code(is_outgoing: bool) -> bytes:
    """Classic BPF: IPv4 packets of one direction, cut to their beginning."""
    keep, drop = (0x06, 0, 0, _SNAP_BYTES), (0x06, 0, 0, 0)
    jump = (0x15, 0, 3, _PACKET_OUTGOING) if is_outgoing else (0x15, 3, 0, _PACKET_OUTGOING)
    lines = [_LOAD_TYPE, jump, (0x28, 0, 0, 12), (0x15, 0, 1, _ETH_P_IP), keep, drop]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
