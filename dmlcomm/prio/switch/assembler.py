"""An assembler for the kernel's eBPF: as many instructions as `program` needs.

Registers are numbers from 0 to 10. The format of an instruction is in the kernel's
Documentation/bpf/standardization/instruction-set.rst: eight bits of operation, four of destination
and source each, a 16-bit offset and a 32-bit value.
"""

import struct

# Registers by use: results of calls; arguments, which calls clobber; what calls keep.
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9 = range(10)

_ALU64, _JMP, _LDX, _ST, _STX, _LD = 0x07, 0x05, 0x01, 0x02, 0x03, 0x00
_REGISTER = 0x08  # the second operand is a register, else a value
_DOUBLE, _WORD, _MEM, _ABS = 0x18, 0x00, 0x60, 0x20
_OPERATIONS = {"add": 0x00, "sub": 0x10, "mul": 0x20, "lsh": 0x60, "rsh": 0x70, "and": 0x50}
_OPERATIONS["mov"] = 0xB0
_JUMPS = {"==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "<": 0xA0, "<=": 0xB0}
_PACKET_SIZES = {1: 0x10, 2: 0x08, 4: 0x00}
_MAP_VALUE = 2  # of a 64-bit load: a map's descriptor and a position in its value
_KTIME_GET_NS = 5

_Word = tuple[int, int, int, int, int]


class Assembler:
    """Instructions in the order of the calls; jumps go to labels that come later."""

    def __init__(self) -> None:
        self._words: list[_Word] = []
        self._jumps: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        self._labels[name] = len(self._words)

    def alu(self, operation: str, to: int, value: int) -> None:
        self._emit(_ALU64 | _OPERATIONS[operation], to, 0, 0, value)

    def alu_register(self, operation: str, to: int, other: int) -> None:
        self._emit(_ALU64 | _OPERATIONS[operation] | _REGISTER, to, other)

    def load(self, to: int, base: int, offset: int, num_bytes: int = 8) -> None:
        size = _DOUBLE if num_bytes == 8 else _WORD
        self._emit(_LDX | _MEM | size, to, base, offset)

    def store(self, base: int, offset: int, register: int) -> None:
        self._emit(_STX | _MEM | _DOUBLE, base, register, offset)

    def store_value(self, base: int, offset: int, value: int) -> None:
        self._emit(_ST | _MEM | _DOUBLE, base, 0, offset, value)

    def load_packet(self, offset: int, num_bytes: int) -> None:
        """R0 becomes 1, 2 or 4 bytes of the packet in network order; R6 has to be the context.

        A packet that is shorter ends the program with 0.
        """
        self._emit(_LD | _ABS | _PACKET_SIZES[num_bytes], 0, 0, 0, offset)

    def load_map_value(self, to: int, descriptor: int) -> None:
        self._emit(_LD | _DOUBLE, to, _MAP_VALUE, 0, descriptor)
        self._emit(0, 0, 0, 0, 0)

    def call_clock(self) -> None:
        """R0 becomes the monotonic time in ns; R1 to R5 are lost."""
        self._emit(_JMP | 0x80, 0, 0, 0, _KTIME_GET_NS)

    def jump(self, label: str) -> None:
        self._jumps.append((len(self._words), label))
        self._emit(_JMP, 0)

    def jump_if(self, register: int, condition: str, value: int, label: str) -> None:
        self._jumps.append((len(self._words), label))
        self._emit(_JMP | _JUMPS[condition], register, 0, 0, value)

    def jump_if_register(self, register: int, condition: str, other: int, label: str) -> None:
        self._jumps.append((len(self._words), label))
        self._emit(_JMP | _JUMPS[condition] | _REGISTER, register, other)

    def exit(self) -> None:
        self._emit(_JMP | 0x90, 0)

    def assemble(self) -> bytes:
        words = list(self._words)
        for place, name in self._jumps:
            code, to, other, _, value = words[place]
            words[place] = (code, to, other, self._labels[name] - place - 1, value)
        return b"".join(
            struct.pack("<BBhi", code, other << 4 | to, offset, value)
            for code, to, other, offset, value in words
        )

    def _emit(self, code: int, to: int, other: int = 0, offset: int = 0, value: int = 0) -> None:
        self._words.append((code, to, other, offset, value))
