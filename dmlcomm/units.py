"""Rates, sizes and times as people have them: ``200mbit``, ``200 Mb/s``, ``1.5 MB``, ``3 ms``."""

import re

RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def parse_rate(text: str) -> int:
    """ "200mbit" -> 200,000,000 bits per second, more than 0. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)([a-z]+)", text.lower())
    if match is None or match[2] not in RATE_UNITS or float(match[1]) == 0:
        raise ValueError(f'expected a rate such as 200mbit or 25gbit, not "{text}"')
    return round(float(match[1]) * RATE_UNITS[match[2]])


def format_rate(rate_bps: float) -> str:
    """200,000,000 -> "200 Mb/s"."""
    for unit, name in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if rate_bps >= unit:
            return f"{rate_bps / unit:.4g} {name}"
    return f"{rate_bps:.4g} b/s"


def format_bytes(count: float) -> str:
    """1,500,000 -> "1.5 MB": decimal units, three digits."""
    for unit in BYTE_UNITS:
        if count < 1000 or unit == BYTE_UNITS[-1]:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    raise AssertionError("the last unit takes any number")


def format_time(seconds: float) -> str:
    """0.0015 -> "1.5 ms"."""
    for unit, name in ((1, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds / 1e-6:.4g} us"
