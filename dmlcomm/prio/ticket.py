"""Tickets: how soon an operation is needed."""

import contextlib
import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

from dmlcomm import _core

DEFAULT_TICKET: Final = _core.DEFAULT_TICKET
_LAST_TICKET: Final = 255


def check_ticket(number: int) -> int:
    """``number`` as a ticket.

    Raises:
        TypeError: it is no integer.
        ValueError: it is not from 0 to 255.
    """
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"expected a ticket from 0 (first) to {_LAST_TICKET}, got {number!r}")
    found = operator.index(number)
    if not 0 <= found <= _LAST_TICKET:
        raise ValueError(f"expected a ticket from 0 (first) to {_LAST_TICKET}, got {found}")
    return found


def current_ticket() -> int:
    """The ticket of what this thread starts now: that of the innermost `ticket` block, or 128."""
    return _core.current_ticket()


def ticket(number: int) -> AbstractContextManager[None]:
    """Gives a ticket to the operations that this thread starts inside the ``with`` block.

    Of the operations that wait to be sent, on the same rail, the one with the smallest ticket goes
    first, also if another one has begun. Operations are collectives, sends and receives of process
    groups of this backend, and pushes and pulls of `dmlcomm.ps`. Blocks may be nested; the
    innermost counts. Ranks should give an operation the same ticket; if they do not, the result is
    the same, and only the order differs. Receives of messages need no ticket: that of the sender
    counts.

    The block counts for the thread that runs it; it must not be left from another one, nor hold
    an ``await`` or a ``yield`` at which other code of the thread goes on.

    Args:
        number: 0 (first) to 255 (last). Outside of all blocks operations have 128.

    Raises:
        TypeError: ``number`` is no integer.
        ValueError: it is not from 0 to 255.

    Example:
        >>> with dmlcomm.ticket(0):
        ...     work = torch.distributed.all_reduce(urgent, async_op=True)
    """
    return _held(check_ticket(number))


def ticket_or_same(number: int | None) -> AbstractContextManager[None]:
    """As `ticket`; None leaves the present one. Raises: see `ticket`."""
    return contextlib.nullcontext() if number is None else ticket(number)


@contextlib.contextmanager
def _held(number: int) -> Iterator[None]:
    before = _core.current_ticket()
    _core.set_ticket(number)
    try:
        yield
    finally:
        _core.set_ticket(before)
