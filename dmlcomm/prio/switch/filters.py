"""Classifiers of a port: what puts packets into its queues.

- `BpfClassifier`: the program in the kernel. It moves the window itself, packet by packet.
- `U32Classifier`: a filter per layer, for which no right to load programs is needed. The daemon
  sees a few bytes of each marked packet that leaves, and changes the filters of the layers whose
  queue has changed. So the window is late by some milliseconds; packets below it are in the highest
  queue from the first one on, since that is their queue after the move as well.
"""

import ctypes
import os
import socket
import struct
import time
from typing import Protocol

from pyroute2 import IPRoute

from dmlcomm.prio.switch import kernel, program
from dmlcomm.prio.switch.marks import OPTION, OPTION_BYTES, Mark, dscp_of_layer, layer_of_dscp
from dmlcomm.prio.switch.program import State
from dmlcomm.prio.switch.queues import FIRST_QUEUE, HANDLE
from dmlcomm.prio.switch.window import PriorityWindow, WindowSettings, queue_of

_ETH_P_ALL = 0x0003
_ETH_P_IP = 0x0800
_ETH_P_IPV6 = 0x86DD

# Of a u32 filter's handle: the kernel's table of its priority, from 0x800 on in the order in which
# priorities were first used, and a number from 1 on.
_FIRST_TABLE, _TABLE_SHIFT = 0x800, 20
_FIRST_FILTER = 1

_PACKET_OUTGOING = 4
# What classic BPF knows beside the frame: SKF_AD_OFF + SKF_AD_PKTTYPE, + SKF_AD_VLAN_TAG_PRESENT.
_PACKET_TYPE, _HAS_VLAN_TAG = 0xFFFFF004, 0xFFFFF030
_SO_ATTACH_FILTER = 26
_SOL_PACKET = 263
_PACKET_AUXDATA = 8
_NOTE_BYTES = 20  # of struct tpacket_auxdata
_SNAP_BYTES = 38
_TAP_BUFFER_BYTES = 1 << 20
_PACKETS_AT_ONCE = 256  # then the filters follow, and the daemon does what else is to be done


class Classifier(Protocol):
    """Of one port, from its construction until close(). ``descriptor``: to be polled, or None."""

    name: str
    descriptor: int | None

    def ready(self) -> None:
        """The descriptor is readable. Raises NetlinkError when the queues are gone."""

    def state(self) -> State: ...

    def moves_us(self) -> list[float]:
        """How long the last moves took, where moves take time."""

    def close(self) -> None: ...


class BpfClassifier:
    """Raises SwitchError or NetlinkError when the kernel refuses it."""

    name = "ebpf"
    descriptor: int | None = None

    def __init__(self, ip: IPRoute, index: int, mark: Mark, settings: WindowSettings) -> None:
        self._map = kernel.create_map(program.STATE_BYTES)
        try:
            self._add_filter(ip, index, program.build(mark, settings, self._map, FIRST_QUEUE))
        except BaseException:
            os.close(self._map)
            raise

    def _add_filter(self, ip: IPRoute, index: int, code: bytes) -> None:
        loaded = kernel.load_program(code)
        try:
            ip.tc(
                "add-filter",
                "bpf",
                index=index,
                parent=HANDLE,
                fd=loaded,
                name="dmlcomm",
                protocol=_ETH_P_ALL,
                prio=1,
            )
        finally:
            os.close(loaded)  # the filter has it

    def ready(self) -> None:
        pass

    def state(self) -> State:
        return program.decode_state(kernel.read_map(self._map, program.STATE_BYTES))

    def moves_us(self) -> list[float]:
        return []

    def close(self) -> None:
        os.close(self._map)


class U32Classifier:
    """Raises NetlinkError or OSError when the kernel refuses it."""

    name = "u32"

    def __init__(
        self, ip: IPRoute, index: int, port: str, mark: Mark, settings: WindowSettings
    ) -> None:
        self._ip = ip
        self._index = index
        self._mark = mark
        self._lowest = settings.num_queues - 1
        self._window = PriorityWindow(settings)
        self._layer_bytes = [0] * mark.num_layers
        self._queues = [queue_of(layer, 0, self._lowest) for layer in range(mark.num_layers)]
        self._moves_us: list[float] = []
        for layer, queue in enumerate(self._queues):
            self._set_filters("add-filter", layer, queue)
        self._tap = _open_tap(port, mark)
        self.descriptor: int | None = self._tap.fileno()

    def ready(self) -> None:
        base, num_moves = self._window.base, self._window.num_moves
        for _ in range(_PACKETS_AT_ONCE):
            seen = _next_packet(self._tap)
            if seen is None:
                break
            packet, num_bytes, now_ns = seen
            layer = layer_of(packet, self._mark)
            if layer is not None:
                self._layer_bytes[layer] += num_bytes
                self._window.classify(layer, num_bytes, now_ns)
        if self._window.num_moves != num_moves and self._window.base != base:
            self._follow_window()

    def state(self) -> State:
        window = self._window
        return State(window.base, window.is_rising, window.num_moves, tuple(self._layer_bytes))

    def moves_us(self) -> list[float]:
        return self._moves_us

    def close(self) -> None:
        self._tap.close()

    def _follow_window(self) -> None:
        begin = time.monotonic()
        for layer, before in enumerate(self._queues):
            queue = queue_of(layer, self._window.base, self._lowest)
            if queue != before:
                self._set_filters("replace-filter", layer, queue)
                self._queues[layer] = queue
        self._moves_us = [*self._moves_us[-99:], (time.monotonic() - begin) * 1e6]

    def _set_filters(self, command: str, layer: int, queue: int) -> None:
        for place, (protocol, keys) in enumerate(filters_of(layer, self._mark)):
            handle = _FIRST_FILTER + layer
            if command == "replace-filter":
                handle |= _FIRST_TABLE + place << _TABLE_SHIFT
            self._ip.tc(
                command,
                "u32",
                index=self._index,
                parent=HANDLE,
                handle=handle,
                protocol=protocol,
                prio=1 + place,
                target=FIRST_QUEUE + queue,
                keys=keys,
            )


def filters_of(layer: int, mark: Mark) -> list[tuple[int, list[str]]]:
    """(protocol, keys) of u32, whose positions count from the IP header."""
    if mark is Mark.IP_OPTION:
        option = OPTION << 24 | OPTION_BYTES << 16 | layer << 8
        # One word of options, which is how dmlcomm sends them.
        return [(_ETH_P_IP, ["0x06000000/0x0f000000+0", f"{option:#010x}/0xffffff00+20"])]
    dscp = dscp_of_layer(layer)
    return [
        (_ETH_P_IP, [f"{dscp << 18:#010x}/0x00fc0000+0"]),
        (_ETH_P_IPV6, [f"{dscp << 22:#010x}/0x0fc00000+0"]),
    ]


def layer_of(packet: bytes, mark: Mark) -> int | None:
    """Of an Ethernet frame, or of its beginning."""
    protocol = int.from_bytes(packet[12:14], "big")
    if mark is Mark.IP_OPTION:
        is_ours = protocol == _ETH_P_IP and packet[34:36] == bytes([OPTION, OPTION_BYTES])
        is_marked = is_ours and packet[14] & 0xF > 5 and packet[36] < mark.num_layers
        return packet[36] if is_marked else None
    if protocol == _ETH_P_IP:
        dscp = packet[15] >> 2
    elif protocol == _ETH_P_IPV6:
        dscp = int.from_bytes(packet[14:16], "big") >> 6 & 0x3F
    else:
        return None
    return layer_of_dscp(dscp) if 0 < dscp <= mark.num_layers else None


def _open_tap(port: str, mark: Mark) -> socket.socket:
    """Sees the beginning of marked packets that leave the port."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    code = _tap_filter(mark)
    array = ctypes.create_string_buffer(code, len(code))
    attached = struct.pack("HL", len(code) // 8, ctypes.addressof(array))
    tap.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TAP_BUFFER_BYTES)
    tap.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    tap.bind((port, _ETH_P_ALL))
    return tap


def _tap_filter(mark: Mark) -> bytes:
    """Classic BPF: outgoing packets that may have a mark, cut to their beginning."""
    load_type, load_vlan = (0x28, 0, 0, _PACKET_TYPE), (0x28, 0, 0, _HAS_VLAN_TAG)
    keep, drop = (0x06, 0, 0, _SNAP_BYTES), (0x06, 0, 0, 0)
    if mark is Mark.IP_OPTION:
        lines = [
            load_type,
            (0x15, 0, 5, _PACKET_OUTGOING),
            load_vlan,
            (0x15, 0, 3, 0),
            (0x28, 0, 0, 34),
            (0x15, 0, 1, OPTION << 8 | OPTION_BYTES),
            keep,
            drop,
        ]
    else:
        lines = [
            load_type,
            (0x15, 0, 9, _PACKET_OUTGOING),
            load_vlan,
            (0x15, 0, 7, 0),
            (0x28, 0, 0, 12),
            (0x15, 0, 2, _ETH_P_IP),
            (0x30, 0, 0, 15),
            (0x45, 2, 3, 0xFC),
            (0x28, 0, 0, 14),
            (0x45, 0, 1, 0x0FC0),
            keep,
            drop,
        ]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _next_packet(tap: socket.socket) -> tuple[bytes, int, int] | None:
    """(beginning, bytes in all, when) of the next packet, or None if there is none now."""
    try:
        packet, notes, _, _ = tap.recvmsg(_SNAP_BYTES, socket.CMSG_SPACE(_NOTE_BYTES))
    except OSError:  # there is none, or the interface went down, which is told once
        return None
    num_bytes = struct.unpack_from("I", notes[0][2], 4)[0]  # tpacket_auxdata.tp_len
    return packet, num_bytes, time.monotonic_ns()
