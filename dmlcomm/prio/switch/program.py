"""The classifier in the kernel: reads a packet's mark, moves the port's window, names the queue.

It runs as the filter of a port's qdisc, under the lock of that qdisc, once per packet that comes to
the queues. Its state is the value of a map, which the daemon reads; `window` says what the fields
are for.
"""

import struct
from dataclasses import dataclass

from dmlcomm.prio.switch.assembler import R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Assembler
from dmlcomm.prio.switch.marks import NUM_MARKED_TICKETS, OPTION, OPTION_BYTES, Mark
from dmlcomm.prio.switch.window import DRAIN_SHIFT, IDLE_SHIFT, LEAST_BYTES, WindowSettings

# Fields of the state, 8 bytes each.
_BASE, _RISING, _MOVES, _LAST, _TOP, _BACKLOG, _WAITING, _BEHIND, _LAYERS = range(0, 72, 8)
STATE_BYTES = _LAYERS + 8 * NUM_MARKED_TICKETS

# Positions in an Ethernet frame without VLAN tags, and values.
_ETHERTYPE, _IP, _IPV4_TOS, _IPV4_OPTIONS = 12, 14, 15, 34
_IPV4, _IPV6 = 0x0800, 0x86DD
_NO_OPTIONS = 0x45

# Of __sk_buff: len, and vlan_present; the kernel keeps the tag beside the frame.
_CONTEXT_LEN, _CONTEXT_VLAN = 0, 20


@dataclass(frozen=True)
class State:
    """What the program knows: its window, and bytes by layer."""

    base: int
    is_rising: bool
    num_moves: int
    layer_bytes: tuple[int, ...]


def decode_state(value: bytes) -> State:
    words = struct.unpack(f"<{STATE_BYTES // 8}Q", value)
    return State(words[0], bool(words[1]), words[2], words[_LAYERS // 8 :])


def decode_last_ns(value: bytes) -> int:
    """When the last packet with payload came, by the kernel's monotonic clock."""
    return int(struct.unpack_from("<Q", value, _LAST)[0])


def build(mark: Mark, settings: WindowSettings, map_descriptor: int, first_class: int) -> bytes:
    """The instructions; ``first_class`` is the id of queue 0, the others follow.

    The program returns the class of a marked packet, and 0, no match, for others.
    """
    code = Assembler()
    code.alu_register("mov", R6, R1)
    code.load(R0, R6, _CONTEXT_VLAN, 4)
    code.jump_if(R0, "!=", 0, "unmarked")
    _read_mark(code, mark)
    code.load_map_value(R7, map_descriptor)
    code.load(R9, R6, _CONTEXT_LEN, 4)
    _count_layer(code)
    code.jump_if(R9, "<", LEAST_BYTES, "no_payload")
    _arrive(code, settings)
    code.alu_register("mov", R5, R8)  # the distance from the base
    code.alu_register("sub", R5, R3)
    code.jump_if(R5, "!=", 0, "below")
    _count_top(code, settings, first_class)
    code.label("below")
    _count_behind(code, settings, first_class)
    code.label("no_payload")
    _only_class(code, settings, first_class)
    code.label("unmarked")
    code.alu("mov", R0, 0)
    code.exit()
    return code.assemble()


def _read_mark(code: Assembler, mark: Mark) -> None:
    """R8 = layer, or a jump to "unmarked"."""
    code.load_packet(_ETHERTYPE, 2)
    if mark is Mark.IP_OPTION:
        code.jump_if(R0, "!=", _IPV4, "unmarked")
        code.load_packet(_IP, 1)
        code.jump_if(R0, "<=", _NO_OPTIONS, "unmarked")
        code.load_packet(_IPV4_OPTIONS, 4)
        code.alu_register("mov", R8, R0)
        code.alu("rsh", R8, 16)
        code.jump_if(R8, "!=", OPTION << 8 | OPTION_BYTES, "unmarked")
        code.alu_register("mov", R8, R0)
        code.alu("rsh", R8, 8)
        code.alu("and", R8, 0xFF)
        code.jump_if(R8, ">=", mark.num_layers, "unmarked")
        return
    code.jump_if(R0, "==", _IPV4, "ipv4")
    code.jump_if(R0, "!=", _IPV6, "unmarked")
    code.load_packet(_IP, 2)  # version, then the traffic class from the fifth bit on
    code.alu("rsh", R0, 6)
    code.jump("dscp")
    code.label("ipv4")
    code.load_packet(_IPV4_TOS, 1)
    code.alu("rsh", R0, 2)
    code.label("dscp")
    code.alu("and", R0, 0x3F)
    code.jump_if(R0, "==", 0, "unmarked")
    code.jump_if(R0, ">", mark.num_layers, "unmarked")
    code.alu_register("mov", R8, R0)
    code.alu("sub", R8, 1)


def _count_layer(code: Assembler) -> None:
    code.alu_register("mov", R1, R8)
    code.alu("and", R1, NUM_MARKED_TICKETS - 1)  # which the kernel's verifier then knows
    code.alu("lsh", R1, 3)
    code.alu_register("add", R1, R7)
    code.load(R2, R1, _LAYERS)
    code.alu_register("add", R2, R9)
    code.store(R1, _LAYERS, R2)


def _arrive(code: Assembler, settings: WindowSettings) -> None:
    """R3 = base, R4 = backlog, after what the packet's time and layer change."""
    code.call_clock()
    code.load(R1, R7, _LAST)
    code.alu_register("mov", R2, R0)
    code.alu_register("sub", R2, R1)  # since the last packet; for ever at the first one
    code.store(R7, _LAST, R0)
    code.load(R3, R7, _BASE)
    code.alu_register("mov", R5, R2)
    code.alu("rsh", R5, IDLE_SHIFT)
    code.jump_if(R5, ">", settings.idle_ns >> IDLE_SHIFT, "begin")
    code.jump_if_register(R8, "<", R3, "move_down")
    code.jump("placed")
    code.label("begin")
    code.store_value(R7, _BACKLOG, 0)
    code.store_value(R7, _WAITING, 0)
    code.label("move_down")
    code.store_value(R7, _RISING, 0)
    code.alu_register("mov", R3, R8)
    _store_move(code)
    code.label("placed")
    if settings.drain is None:
        code.alu("mov", R4, 0)
    else:
        code.alu("mul", R2, settings.drain)
        code.alu("rsh", R2, DRAIN_SHIFT)
        _left_after_drain(code, _WAITING)
        code.alu_register("add", R4, R9)
        code.store(R7, _WAITING, R4)
        _left_after_drain(code, _BACKLOG)
        code.store(R7, _BACKLOG, R4)
    code.jump_if(R8, "!=", 0, "not_first_layer")
    code.store_value(R7, _RISING, 1)
    code.label("not_first_layer")


def _left_after_drain(code: Assembler, field: int) -> None:
    """R4 = what is left of the field's bytes after R2 bytes have left; R5 is lost."""
    code.alu("mov", R4, 0)
    code.load(R5, R7, field)
    code.jump_if_register(R2, ">=", R5, f"drained_{field}")
    code.alu_register("mov", R4, R5)
    code.alu_register("sub", R4, R2)
    code.label(f"drained_{field}")


def _count_top(code: Assembler, settings: WindowSettings, first_class: int) -> None:
    code.store_value(R7, _BEHIND, 0)
    code.load(R1, R7, _TOP)
    code.alu_register("add", R1, R9)
    code.store(R7, _TOP, R1)
    if settings.drain is not None:
        code.alu_register("add", R4, R9)
        code.store(R7, _BACKLOG, R4)
    code.alu("mov", R0, first_class)
    code.load(R2, R7, _RISING)
    code.jump_if(R2, "!=", 0, "stay")
    code.jump_if(R3, "==", 0, "stay")
    code.alu("add", R4, settings.slide_bytes)
    code.jump_if_register(R1, "<", R4, "stay")
    code.alu("sub", R3, 1)
    _store_move(code)
    code.label("stay")
    code.exit()


def _count_behind(code: Assembler, settings: WindowSettings, first_class: int) -> None:
    _class_of_distance(code, settings, first_class, "in_window")
    code.load(R2, R7, _RISING)
    code.jump_if(R2, "==", 0, "stay_behind")
    code.load(R1, R7, _BEHIND)
    code.alu_register("add", R1, R9)
    code.store(R7, _BEHIND, R1)
    code.jump_if(R1, "<", settings.slide_bytes, "stay_behind")
    if settings.drain is not None:
        code.jump_if(R5, ">", settings.num_queues - 1, "rise")
        code.load(R1, R7, _WAITING)
        code.alu_register("sub", R1, R9)
        code.jump_if(R1, ">", settings.slide_bytes, "stay_behind")
        code.label("rise")
    code.alu("add", R3, 1)
    _store_move(code)
    code.label("stay_behind")
    code.exit()


def _only_class(code: Assembler, settings: WindowSettings, first_class: int) -> None:
    """Ends the program with the class of R8 = layer, and changes nothing."""
    code.alu("mov", R5, 0)
    code.load(R3, R7, _BASE)
    code.jump_if_register(R8, "<", R3, "in_first")
    code.alu_register("mov", R5, R8)
    code.alu_register("sub", R5, R3)
    code.label("in_first")
    _class_of_distance(code, settings, first_class, "classified")
    code.exit()


def _class_of_distance(
    code: Assembler, settings: WindowSettings, first_class: int, label: str
) -> None:
    """R0 = the class of R5 = the distance from the base."""
    lowest = settings.num_queues - 1
    code.alu_register("mov", R0, R5)
    code.jump_if(R0, "<=", lowest, label)
    code.alu("mov", R0, lowest)
    code.label(label)
    code.alu("add", R0, first_class)


def _store_move(code: Assembler) -> None:
    """The base becomes R3; R5 is lost."""
    code.store(R7, _BASE, R3)
    code.store_value(R7, _TOP, 0)
    code.store_value(R7, _BEHIND, 0)
    code.load(R5, R7, _MOVES)
    code.alu("add", R5, 1)
    code.store(R7, _MOVES, R5)
