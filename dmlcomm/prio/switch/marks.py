"""Marks of packets: how their ticket is written, and what a switch calls a layer.

The sender's side is csrc/transport/tcp/ticket_mark.h. A switch reads one kind of mark. A **layer**
is what the mark distinguishes: a ticket where packets carry the IP option, and where they carry a
DSCP, a ticket up to 31 and a group of eight from there on.
"""

from enum import Enum

# Packets of the default ticket, 128, and of later ones have no mark, and go last.
NUM_MARKED_TICKETS = 128

# IPv4 option 30 with the "copied" flag (RFC 4727: for experiments), its length, then the ticket.
OPTION = 0x9E
OPTION_BYTES = 3

_OWN_TICKETS = 32
_SHARED_TICKETS = 8


class Mark(Enum):
    """A kind of mark, by its word in DMLCOMM_TICKET_MARK."""

    DSCP = "dscp"
    IP_OPTION = "ip-option"

    @property
    def num_layers(self) -> int:
        if self is Mark.IP_OPTION:
            return NUM_MARKED_TICKETS
        return layer_of_dscp(dscp_of(NUM_MARKED_TICKETS - 1)) + 1

    def tickets(self, layer: int) -> str:
        """The tickets of a layer: "7", or "40-47"."""
        if self is Mark.IP_OPTION or layer < _OWN_TICKETS:
            return str(layer)
        first = _OWN_TICKETS + (layer - _OWN_TICKETS) * _SHARED_TICKETS
        return f"{first}-{first + _SHARED_TICKETS - 1}"


def dscp_of(ticket: int) -> int:
    """The DSCP of packets of a ticket from 0 to 127."""
    if ticket < _OWN_TICKETS:
        return 1 + ticket
    return 1 + _OWN_TICKETS + (ticket - _OWN_TICKETS) // _SHARED_TICKETS


def layer_of_dscp(dscp: int) -> int:
    """DSCP 0 is no mark, so layer 0 has DSCP 1."""
    return dscp - 1


def dscp_of_layer(layer: int) -> int:
    return layer + 1
