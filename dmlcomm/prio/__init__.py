"""Which communication goes first: see docs/tickets.md."""

from dmlcomm.prio.ticket import (
    DEFAULT_TICKET,
    check_ticket,
    current_ticket,
    ticket,
    ticket_or_same,
)

__all__ = ["DEFAULT_TICKET", "check_ticket", "current_ticket", "ticket", "ticket_or_same"]
