"""What every part of dmlcomm knows of a NIC that carries data between hosts."""

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
