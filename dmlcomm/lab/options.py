"""Options of a whole lab."""

from dataclasses import dataclass

from dmlcomm.topology.shape import parse_mtu


@dataclass(frozen=True)
class Options:
    """Settings of a lab, the same for all of its links and hosts.

    Attributes:
        mtu: bytes of an IP packet on data interfaces, from 576 to 65,535. The default is that of
        clusters for storage and training; see docs/adr/0003.
        congestion: TCP congestion control of connections between the hosts. The default is Linux's:
        others pace by their own estimate of the rate, which makes measurements depend on it. Empty
        leaves what the machine uses.
        forwarding: whether the kernels of hosts forward packets of others. If not, a host reaches
        those that it shares a switch or a router with, and has routes to no others.
    """

    mtu: int = 9000
    congestion: str = "cubic"
    forwarding: bool = True

    def __post_init__(self) -> None:
        parse_mtu(str(self.mtu))
