"""Sizes and element types of operations, as people write them."""

import re

from dmlcomm.planning.network import PlanError

ELEMENT_BYTES = {"i8": 1, "u8": 1, "f16": 2, "bf16": 2, "f32": 4, "i32": 4, "f64": 8, "i64": 8}
SIZE_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20}


def parse_size(text: str) -> int:
    """ "12.5MB" -> 12,500,000 bytes. Raises PlanError."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([A-Za-z]*)", text)
    if match is None or match[2] not in SIZE_UNITS:
        raise PlanError(f'"{text}" is not a size such as 12.5MB, 64MiB or 4096')
    return round(float(match[1]) * SIZE_UNITS[match[2]])


def element_bytes(dtype: str) -> int:
    """ "f32" -> 4. Raises PlanError."""
    if dtype not in ELEMENT_BYTES:
        raise PlanError(f'"{dtype}" is not of {", ".join(ELEMENT_BYTES)}')
    return ELEMENT_BYTES[dtype]
