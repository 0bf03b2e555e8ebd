"""The shape of a link, as people write it: ``200mbit``, ``1.5ms``, ``2%``."""

import re
from dataclasses import dataclass

from dmlcomm.errors import LabError
from dmlcomm.units import format_rate, parse_rate

TIME_UNITS = {"us": 1, "ms": 10**3, "s": 10**6}
UNLIMITED = "unlimited"

# The kernel shapes in whole bytes per second and its burst must hold a few frames: below this rate
# the emulation is not exact.
LEAST_RATE_BPS = 100_000

# tbf's rate is a 32-bit number of bytes per second.
MOST_RATE_BPS = 30_000_000_000


@dataclass(frozen=True)
class Shape:
    """The shape of each of a link's two directions.

    Attributes:
        rate_bps: bits per second of whole Ethernet frames; None is as fast as the machine.
        delay_us: one-way delay in microseconds.
        loss: share of the packets that is lost, from 0 to 1.
    """

    rate_bps: int | None = None
    delay_us: int = 0
    loss: float = 0.0

    def __str__(self) -> str:
        parts = [format_link_rate(self.rate_bps)]
        if self.delay_us:
            parts.append(f"{self.delay_us / 1000:g} ms")
        if self.loss:
            parts.append(f"{self.loss:.4g} lost" if self.loss == 1 else f"{self.loss:.2%} lost")
        return ", ".join(parts)


def parse_link_rate(text: str) -> int | None:
    """ "200mbit" -> 200,000,000 bits per second; "unlimited" -> None. Raises LabError."""
    if text == UNLIMITED:
        return None
    try:
        rate = parse_rate(text)
    except ValueError as error:
        raise LabError(str(error)) from error
    if not LEAST_RATE_BPS <= rate <= MOST_RATE_BPS:
        bounds = f"from {format_rate(LEAST_RATE_BPS)} to {format_rate(MOST_RATE_BPS)}"
        raise LabError(f'rate "{text}" is not {bounds}, or unlimited')
    return rate


def format_link_rate(rate_bps: float | None) -> str:
    """200,000,000 -> "200 Mb/s"; None -> "unlimited"."""
    return UNLIMITED if rate_bps is None else format_rate(rate_bps)


def parse_delay_us(text: str) -> int:
    """ "1.5ms" -> 1500 microseconds; a bare 0 is no delay."""
    if text == "0":
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower())
    if match is None or match[2] not in TIME_UNITS:
        raise LabError(f'"{text}" is not a time such as 50us, 1.5ms or 1s')
    return round(float(match[1]) * TIME_UNITS[match[2]])


def parse_loss(text: str) -> float:
    """ "1%" -> 0.01."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if match is None or float(match[1]) > 100:
        raise LabError(f'loss "{text}" is not a share of packets from 0% to 100%')
    return float(match[1]) / 100
