"""The bpf() system call: a map with one value, a classifier, and a run of it for measurements."""

import ctypes
import errno
import os
import platform

from dmlcomm.errors import SwitchError
from dmlcomm.prio.switch.assembler import Assembler

_NUMBERS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD, _TEST_RUN = 0, 1, 5, 10
_ARRAY_MAP, _CLASSIFIER = 2, 3
_LOG_BYTES = 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64


class _MapCreate(ctypes.Structure):
    _fields_ = [(name, _U32) for name in ("kind", "key_bytes", "value_bytes", "entries", "flags")]


class _MapLookup(ctypes.Structure):
    _fields_ = [("map", _U32), ("pad", _U32), ("key", _U64), ("value", _U64), ("flags", _U64)]


class _ProgLoad(ctypes.Structure):
    _fields_ = [
        ("kind", _U32),
        ("count", _U32),
        ("instructions", _U64),
        ("license", _U64),
        ("log_level", _U32),
        ("log_bytes", _U32),
        ("log", _U64),
    ]


class _TestRun(ctypes.Structure):
    _fields_ = [
        ("program", _U32),
        ("result", _U32),
        ("bytes_in", _U32),
        ("bytes_out", _U32),
        ("data_in", _U64),
        ("data_out", _U64),
        ("repeat", _U32),
        ("duration_ns", _U32),
    ]


def _bpf(command: int, attributes: ctypes.Structure) -> int:
    """Raises OSError."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no bpf() for {platform.machine()}")
    size = ctypes.sizeof(attributes)
    result = int(_libc.syscall(number, command, ctypes.byref(attributes), size))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def why_not_permitted() -> str | None:
    """The kernel's reason to refuse this process a map, or a classifier that asks for the time,
    else None."""
    code = Assembler()
    code.call_clock()
    code.exit()
    try:
        os.close(create_map(8))
        os.close(load_program(code.assemble()))
    except OSError as error:
        return error.strerror or str(error)
    except SwitchError as error:
        return str(error)
    return None


def create_map(value_bytes: int) -> int:
    """A descriptor of a map with one value of zeros. Raises OSError."""
    return _bpf(_MAP_CREATE, _MapCreate(_ARRAY_MAP, 4, value_bytes, 1, 0))


def read_map(descriptor: int, value_bytes: int) -> bytes:
    """Raises OSError."""
    key = ctypes.c_uint32(0)
    value = ctypes.create_string_buffer(value_bytes)
    _bpf(_MAP_LOOKUP, _MapLookup(descriptor, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    return value.raw


def load_program(instructions: bytes) -> int:
    """A descriptor of the classifier. Raises SwitchError with the verifier's last words."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attributes = _ProgLoad(
        _CLASSIFIER,
        len(instructions) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        1,
        _LOG_BYTES,
        ctypes.addressof(log),
    )
    try:
        return _bpf(_PROG_LOAD, attributes)
    except OSError as error:
        said = log.value.decode(errors="replace").strip().splitlines()[-3:]
        raise SwitchError(
            f"the kernel refuses the classifier ({error.strerror}: {' / '.join(said)}); "
            "try --classifier u32"
        ) from error


def run_program(program: int, packet: bytes, repeat: int = 1) -> tuple[int, int]:
    """(result, ns of a run on average) for a frame. Raises OSError."""
    data = ctypes.create_string_buffer(packet, len(packet))
    attributes = _TestRun(program, 0, len(packet), 0, ctypes.addressof(data), 0, repeat, 0)
    _bpf(_TEST_RUN, attributes)
    return attributes.result, attributes.duration_ns
