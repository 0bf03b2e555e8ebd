"""Digits of the hosts of a grid: who is whose neighbour, and at which switch.

A grid of ``sizes`` (n_0, n_1, ...) has n_0 n_1 ... hosts. A host is a number with the digits
v_l < n_l, of which v_0 counts fastest; here digits and sizes are written level 0 first. Hosts that
differ in digit l only are neighbours on level l: their NICs l are at the same switch. The switches
of a level are numbered by the other digits, in the same order.

BCube(n, k) is the grid with k times the size n. Source: "BML" (NeurIPS 2018), which writes digits
with level 0 last.
"""

import math
from collections.abc import Sequence


def num_hosts(sizes: Sequence[int]) -> int:
    return math.prod(sizes)


def to_digits(host: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """(v_0, v_1, ...) of a host.

    >>> to_digits(5, [3, 2])
    (2, 1)
    """
    digits = []
    for size in sizes:
        host, digit = divmod(host, size)
        digits.append(digit)
    return tuple(digits)


def from_digits(digits: Sequence[int], sizes: Sequence[int]) -> int:
    """The host that has these digits; each has to be less than the size of its level.

    >>> from_digits((2, 1), [3, 2])
    5
    """
    host = 0
    for digit, size in zip(reversed(digits), reversed(sizes), strict=True):
        host = host * size + digit
    return host


def stride(level: int, sizes: Sequence[int]) -> int:
    """The difference of the numbers of two hosts whose digits differ by one on this level."""
    return math.prod(sizes[:level])


def line(host: int, level: int, sizes: Sequence[int]) -> list[int]:
    """The hosts at the switch of ``host`` on a level, itself included, by port.

    >>> line(5, 0, [3, 2])
    [3, 4, 5]
    """
    step = stride(level, sizes)
    first = host - host // step % sizes[level] * step
    return [first + digit * step for digit in range(sizes[level])]


def switch_of(host: int, level: int, sizes: Sequence[int]) -> int:
    """The number, on its level, of the switch that NIC ``level`` of the host is at.

    >>> switch_of(5, 1, [3, 2])
    2
    """
    step = stride(level, sizes)
    return host // (step * sizes[level]) * step + host % step
