"""What ``lab set`` understands: ``down``, ``up``, ``rate=50mbit``, ``delay=1ms``, ``loss=1%``."""

from collections.abc import Sequence
from dataclasses import replace

from dmlcomm.lab.errors import LabError
from dmlcomm.lab.units import Shape, parse_delay_us, parse_loss, parse_rate


def apply(changes: Sequence[str], shape: Shape, up: bool) -> tuple[Shape, bool]:
    """The state of a link after ``changes``. Raises LabError for a word that is none."""
    for change in changes:
        key, equals, value = change.partition("=")
        if change in ("up", "down"):
            up = change == "up"
        elif equals and key == "rate":
            shape = replace(shape, rate_bps=parse_rate(value))
        elif equals and key == "delay":
            shape = replace(shape, delay_us=parse_delay_us(value))
        elif equals and key == "loss":
            shape = replace(shape, loss=parse_loss(value))
        else:
            raise LabError(
                f'"{change}" is no change of a link: expected up, down, rate=50mbit, delay=1ms or '
                "loss=1%"
            )
    return shape, up
