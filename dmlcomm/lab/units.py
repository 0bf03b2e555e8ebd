"""Rates, times and shares as people write them: ``200mbit``, ``1.5ms``, ``2%``."""

import re
from dataclasses import dataclass

from dmlcomm.lab.errors import LabError

RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
TIME_UNITS = {"us": 1, "ms": 10**3, "s": 10**6}
UNLIMITED = "unlimited"

# The kernel shapes in whole bytes per second and its burst must hold a few frames: below this rate
# the emulation is not exact.
LEAST_RATE_BPS = 100_000

# tbf's rate is a 32-bit number of bytes per second.
MOST_RATE_BPS = 30_000_000_000


@dataclass(frozen=True)
class Shape:
    """What a link does to each of its two directions.

    Attributes:
        rate_bps: bits per second of whole Ethernet frames; None is as fast as the machine.
        delay_us: one-way delay in microseconds.
        loss: share of the packets that is lost, from 0 to 1.
    """

    rate_bps: int | None = None
    delay_us: int = 0
    loss: float = 0.0

    def __str__(self) -> str:
        parts = [format_rate(self.rate_bps)]
        if self.delay_us:
            parts.append(f"{self.delay_us / 1000:g} ms")
        if self.loss:
            parts.append(f"{self.loss:.4g} lost" if self.loss == 1 else f"{self.loss:.2%} lost")
        return ", ".join(parts)


def parse_rate(text: str) -> int | None:
    """ "200mbit" -> 200,000,000 bits per second; "unlimited" -> None."""
    if text == UNLIMITED:
        return None
    rate = round(_number(text, RATE_UNITS, "a rate such as 200mbit, 1.5gbit or unlimited"))
    if not LEAST_RATE_BPS <= rate <= MOST_RATE_BPS:
        bounds = f"from {format_rate(LEAST_RATE_BPS)} to {format_rate(MOST_RATE_BPS)}"
        raise LabError(f'rate "{text}" is not {bounds}, or unlimited')
    return rate


def parse_delay_us(text: str) -> int:
    """ "1.5ms" -> 1500 microseconds; a bare 0 is no delay."""
    if text == "0":
        return 0
    return round(_number(text, TIME_UNITS, "a time such as 50us, 1.5ms or 1s"))


def parse_loss(text: str) -> float:
    """ "1%" -> 0.01."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if match is None or float(match[1]) > 100:
        raise LabError(f'loss "{text}" is not a share of packets from 0% to 100%')
    return float(match[1]) / 100


def format_rate(rate_bps: float | None) -> str:
    """200,000,000 -> "200 Mb/s"."""
    if rate_bps is None:
        return UNLIMITED
    for unit, name in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if rate_bps >= unit:
            return f"{rate_bps / unit:.4g} {name}"
    return f"{rate_bps:.4g} b/s"


def _number(text: str, units: dict[str, int], expected: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower())
    if match is None or match[2] not in units:
        raise LabError(f'"{text}" is not {expected}')
    return float(match[1]) * units[match[2]]
