"""A NIC that carries data between hosts, as every part of dmlcomm knows it, and its counters."""

import ipaddress
from dataclasses import dataclass

Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Rail:
    """An interface that may be used between hosts, with the address it binds to.

    Attributes:
        has_carrier: whether its cable is plugged in.
        speed_mbps: as the driver says, in Mb/s; None if it does not.
        mtu: bytes of an IP packet; None where it does not matter.
    """

    interface: str
    address: str
    prefix_length: int
    has_carrier: bool = True
    speed_mbps: int | None = None
    mtu: int | None = None

    @property
    def subnet(self) -> Subnet:
        return ipaddress.ip_interface(f"{self.address}/{self.prefix_length}").network

    def __str__(self) -> str:
        return f"{self.interface} ({self.address}/{self.prefix_length})"


@dataclass(frozen=True)
class RailCounters:
    """Counters of one rail since its connections began: `dmlcomm.rails`, `Client.rails`.

    Attributes:
        interface: the NIC's name, or "local" for messages to processes of this host (what they read
            from each other's memory by themselves is not counted).
        bytes_sent, bytes_received: with the headers of the frames, without those of TCP.
        frames_repeated: frames that took another rail after a connection died on this one.
        lanes_lost, lanes_back: connections on this rail that died, and that were made anew. Where a
            rail stands in for another it has several per peer, and for urgent tickets it has more.
        bits_per_second: what collectives have shown the rail to carry for this rank; 0 if they have
            not yet.
        round_trip_us: the shortest round trip of late on this rail, in microseconds; 0 if unknown.
        agreed_bits_per_second: the rate that the group's algorithms are chosen for, alike on all
            ranks: of the slowest host, at first what drivers tell or ``DMLCOMM_TOPOLOGY``. 0 if
            they do not depend on this rail: of "local", of a spare one, and of `Client.rails`.
        agreed_round_trip_us, agreed_message_us: the round trip that they are chosen for, 0 before
            one was measured, and the time of a message beside its bytes, both in microseconds.
        bytes_resent: what TCP has sent again, as lost, in the collectives that were measured.
        bytes_lent: of those sent, what receivers have fetched straight from this rank's memory
            (``DMLCOMM_UCX_REMOTE_MEMORY``).
        blocking_us: how long an urgent operation waits at most for what has left our queues for
            this rail, in microseconds: a part of a large message on every connection, what the
            kernel queues, and what is on its way. 0 before there were large messages, or if the
            rate is not known.
        congestion: TCP's congestion control on this rail, as "cubic"; several, in the order of the
            alphabet, as "bbr, cubic". Empty where there is no connection yet, or none of TCP.
    """

    interface: str
    bytes_sent: int
    bytes_received: int
    frames_repeated: int
    lanes_lost: int
    lanes_back: int
    bits_per_second: float = 0
    round_trip_us: float = 0
    agreed_bits_per_second: float = 0
    agreed_round_trip_us: float = 0
    agreed_message_us: float = 0
    bytes_resent: int = 0
    bytes_lent: int = 0
    blocking_us: float = 0
    congestion: str = ""
