"""The shape of a link and its changes, as people write them: ``200mbit``, ``1.5ms``, ``2%``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dmlcomm.errors import LabError
from dmlcomm.units import format_rate, parse_rate

TIME_UNITS = {"us": 1, "ms": 10**3, "s": 10**6}
UNLIMITED = "unlimited"

# The kernel shapes in whole bytes per second and its burst must hold a few frames: below this rate
# the emulation is not exact.
LEAST_RATE_BPS = 100_000

# tbf's rate is a 32-bit number of bytes per second.
MOST_RATE_BPS = 30_000_000_000

LEAST_MTU = 576
MOST_MTU = 65_535

# Of the other direction of a link: the rate is that of the first one.
SAME = 0


@dataclass(frozen=True)
class Shape:
    """The shape of a link: of each of its two directions, but for the rate.

    Attributes:
        rate_bps: bits per second of whole Ethernet frames; None is as fast as the machine.
        delay_us: one-way delay in microseconds.
        loss: share of the packets that is lost, from 0 to 1.
        back_rate_bps: rate of what the end sends that is named second; `SAME`: ``rate_bps``.
        mtu: bytes of an IP packet, on both interfaces; 0: as in the whole lab.
    """

    rate_bps: int | None = None
    delay_us: int = 0
    loss: float = 0.0
    back_rate_bps: int | None = SAME
    mtu: int = 0

    @property
    def back(self) -> "Shape":
        """The shape of what the second end sends, where this is that of the first."""
        rate = self.rate_bps if self.back_rate_bps == SAME else self.back_rate_bps
        return replace(self, rate_bps=rate, back_rate_bps=SAME)

    @property
    def least_rate_bps(self) -> int | None:
        """Of the slower direction."""
        rates = [rate for rate in (self.rate_bps, self.back.rate_bps) if rate is not None]
        return min(rates, default=None)

    def with_rate(self, rate_bps: int | None, *, first: bool) -> "Shape":
        """Another rate of what the first end sends, or of what the second sends."""
        other = self.back.rate_bps if first else self.rate_bps
        there, back = (rate_bps, other) if first else (other, rate_bps)
        return replace(self, rate_bps=there, back_rate_bps=SAME if there == back else back)

    def __str__(self) -> str:
        parts = [format_link_rate(self.rate_bps)]
        if self.back_rate_bps != SAME:
            parts[0] += f" ->, {format_link_rate(self.back_rate_bps)} <-"
        if self.mtu:
            parts.append(f"MTU {self.mtu}")
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


def parse_mtu(text: str) -> int:
    """ "1500" -> 1500. Raises LabError."""
    if not text.isdecimal() or not LEAST_MTU <= int(text) <= MOST_MTU:
        raise LabError(f"MTU {text} is not from {LEAST_MTU} to {MOST_MTU}")
    return int(text)


def apply_changes(
    changes: Sequence[str], shape: Shape, up: bool, first: bool = True
) -> tuple[Shape, bool]:
    """The state of a link after ``changes``. Raises LabError for a word that is none.

    Args:
        first: the changes are seen from the end of the link that is named first.
    """
    for change in changes:
        key, equals, value = change.partition("=")
        if change in ("up", "down"):
            up = change == "up"
        elif equals and key == "rate":
            shape = replace(shape, rate_bps=parse_link_rate(value), back_rate_bps=SAME)
        elif equals and key in ("out", "in"):
            shape = shape.with_rate(parse_link_rate(value), first=first == (key == "out"))
        elif equals and key == "mtu":
            shape = replace(shape, mtu=parse_mtu(value))
        elif equals and key == "delay":
            shape = replace(shape, delay_us=parse_delay_us(value))
        elif equals and key == "loss":
            shape = replace(shape, loss=parse_loss(value))
        else:
            raise LabError(
                f'"{change}" is no change of a link: expected up, down, rate=50mbit, out=50mbit, '
                "in=50mbit, delay=1ms, loss=1%, mtu=1500, tor=2 or agg=1"
            )
    return shape, up


def take_move(changes: Sequence[str]) -> tuple[str | None, list[str]]:
    """The switch to which ``changes`` move a link ("tor2", the last that is named), and the rest.

    Raises LabError for a switch that is no number.
    """
    target, rest = None, []
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or key not in ("tor", "agg"):
            rest.append(change)
        elif value.isdecimal():
            target = f"{key}{value}"
        else:
            raise LabError(f'"{change}" names no switch: expected a number from 1, as in {key}=2')
    return target, rest
