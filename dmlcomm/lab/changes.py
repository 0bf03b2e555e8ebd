"""What ``lab set`` understands: ``down``, ``up``, ``rate=50mbit``, ``delay=1ms``, ``loss=1%``, and
where links can be moved ``tor=2``."""

from collections.abc import Sequence
from dataclasses import replace

from dmlcomm.errors import LabError
from dmlcomm.lab.units import Shape, parse_delay_us, parse_link_rate, parse_loss


def apply(changes: Sequence[str], shape: Shape, up: bool) -> tuple[Shape, bool]:
    """The state of a link after ``changes``. Raises LabError for a word that is none."""
    for change in changes:
        key, equals, value = change.partition("=")
        if change in ("up", "down"):
            up = change == "up"
        elif equals and key == "rate":
            shape = replace(shape, rate_bps=parse_link_rate(value))
        elif equals and key == "delay":
            shape = replace(shape, delay_us=parse_delay_us(value))
        elif equals and key == "loss":
            shape = replace(shape, loss=parse_loss(value))
        else:
            raise LabError(
                f'"{change}" is no change of a link: expected up, down, rate=50mbit, delay=1ms, '
                "loss=1% or tor=2"
            )
    return shape, up


def take_move(changes: Sequence[str]) -> tuple[str | None, list[str]]:
    """The switch to which ``changes`` move a link ("tor2", the last that is named), and the rest.

    Raises LabError for a ToR that is no number.
    """
    target, rest = None, []
    for change in changes:
        if not change.startswith("tor="):
            rest.append(change)
        elif change.removeprefix("tor=").isdecimal():
            target = change.replace("=", "")
        else:
            raise LabError(f'"{change}" names no ToR: expected a number from 1, as in tor=2')
    return target, rest
