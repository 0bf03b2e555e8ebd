"""The network that is planned: hosts, rails, rates."""

import re
from dataclasses import dataclass

from dmlcomm import _core
from dmlcomm.bml import grid, specification
from dmlcomm.network import topology_file
from dmlcomm.units import parse_rate

# Of every frame: headers of IP, and of TCP with time stamps; and of Ethernet, which rates count.
IP_AND_TCP_BYTES = 52
ETHERNET_BYTES = 14

# Of a rail whose rate nobody gives, as in a job.
ASSUMED_BPS = 1e9

DEFAULT_MTU = 1500
LEAST_MTU = 576
MOST_MTU = 65_535


class PlanError(ValueError):
    """The network or operation to plan, or a plan file, is not legal."""


@dataclass(frozen=True)
class PlannedNetwork:
    """Hosts with the same number of ranks and NICs.

    Attributes:
        sizes: of the levels of a grid, level 0 first; () for a flat network.
        rates_bps: of each rail, in bits per second of whole Ethernet frames.
        mtu: bytes of an IP packet.
    """

    num_hosts: int
    sizes: tuple[int, ...]
    rates_bps: tuple[float, ...]
    ranks_per_host: int = 1
    mtu: int = DEFAULT_MTU

    def __post_init__(self) -> None:
        if not LEAST_MTU <= self.mtu <= MOST_MTU:
            raise PlanError(f"MTU {self.mtu} is not from {LEAST_MTU} to {MOST_MTU}")
        if self.num_ranks > specification.MAX_HOSTS:
            raise PlanError(f"{self.num_ranks} ranks are more than {specification.MAX_HOSTS}")

    @property
    def num_ranks(self) -> int:
        return self.num_hosts * self.ranks_per_host

    @property
    def efficiency(self) -> float:
        """Share of a full frame that is data: 1448 of 1514 bytes at MTU 1500."""
        return (self.mtu - IP_AND_TCP_BYTES) / (self.mtu + ETHERNET_BYTES)

    def __str__(self) -> str:
        if not self.sizes:
            return f"flat:{self.num_hosts},{len(self.rates_bps)}"
        return str(specification.Network(self.sizes))

    def core(self) -> _core.Topology:
        """With the prices that the planner assumes, and rates of data, without headers."""
        return self._topology(self.efficiency)

    def of_job(self) -> _core.Topology:
        """The same as a job knows it, which takes the rates of the NICs as they are."""
        return self._topology(1)

    def _topology(self, share: float) -> _core.Topology:
        rates = [round(rate * share) for rate in self.rates_bps]
        return _core.Topology(self.num_hosts, self.ranks_per_host, list(self.sizes), rates)


def parse(
    text: str,
    rate: str,
    ranks_per_host: int = 1,
    mtu: int = DEFAULT_MTU,
    needs_rates: bool = True,
) -> PlannedNetwork:
    """Reads ``flat:N,k``, ``bcube:n,k``, ``grid:AxB...`` or the path of a topology file.

    Args:
        rate: "200mbit", or one per level or rail, "200mbit,50mbit"; may be empty for a file that
            has rates.
        needs_rates: whether it is an error if nobody gives them.

    Raises:
        PlanError: the text, a rate or the MTU is not legal.
    """
    try:
        num_hosts, sizes, num_rails, rates = _shape(text)
    except specification.TopologyError as error:
        raise PlanError(str(error)) from error
    if rate:
        rates = _rates(rate)
    if not rates and needs_rates:
        raise PlanError(f"{text} has no rates: give a rate (--rate), as 200mbit")
    rates = rates or (ASSUMED_BPS,)
    if len(rates) not in (1, num_rails):
        raise PlanError(f"{text} has {num_rails} rails: expected one rate, or {num_rails}")
    all_rates = rates * num_rails if len(rates) == 1 else rates
    return PlannedNetwork(num_hosts, sizes, all_rates, ranks_per_host, mtu)


def _shape(text: str) -> tuple[int, tuple[int, ...], int, tuple[float, ...]]:
    if not text:
        raise PlanError("give --topology, as bcube:3,2, or --measure the network of a job")
    if match := re.fullmatch(r"flat:(\d{1,7}),(\d{1,2})", text):
        num_hosts, num_rails = map(int, match.groups())
        if num_hosts < 1 or num_rails < 1:
            raise PlanError(f"{text}: expected one host and one NIC or more")
        return num_hosts, (), num_rails, ()
    rates: tuple[float, ...] = ()
    if text.startswith(("bcube:", "grid:")):
        sizes = specification.parse_sizes(text, text)
    elif text.endswith((".yaml", ".yml")):
        network = topology_file.load(text, "--topology")
        sizes, rates = network.sizes, network.rates_bps
    else:
        raise PlanError(f'"{text}" is not flat:N,k, bcube:n,k, grid:AxB... or a .yaml file')
    if not sizes:
        raise PlanError(f"{text} does not say how many hosts there are; use flat:N,k")
    return grid.num_hosts(sizes), sizes, len(sizes), rates


def _rates(text: str) -> tuple[float, ...]:
    if "unlimited" in text.split(","):
        raise PlanError("a plan needs rates, and unlimited is none")
    try:
        return tuple(float(parse_rate(item)) for item in text.split(","))
    except ValueError as error:
        raise PlanError(str(error)) from error
