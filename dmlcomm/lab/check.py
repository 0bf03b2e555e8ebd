"""``lab check``: whether every link gives its rate while all are in use, and what the CPU does."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dmlcomm.errors import LabError
from dmlcomm.lab import load, sampling
from dmlcomm.lab.client import Client
from dmlcomm.lab.cpu import CpuMeter, CpuUse
from dmlcomm.lab.sampling import LinkTraffic
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import End
from dmlcomm.topology.shape import MOST_RATE_BPS, UNLIMITED
from dmlcomm.units import format_rate

TOLERANCE = 0.05

GIVE_ONE = "give one with lab up --rate or lab set"

# TCP finds its rate well within this time on links of a lab.
WARM_UP_S = 1.0
IDLE_S = 0.5

# A machine that stands still for a moment spoils one interval, not the rate.
INTERVAL_S = 1.0
LEAST_INTERVALS = 3

# The cost of the load can be told only if the rest of the machine uses no more than this.
QUIET = 0.2

# If a virtual machine lacks more of its CPU time than this, the lab does not cause its rates.
MUCH_STOLEN = 0.05


@dataclass(frozen=True)
class Line:
    """One direction of a link under load. Rates: of whole frames; the median of intervals."""

    sender: End
    expected_bps: int
    measured_bps: float

    @property
    def share(self) -> float:
        return self.measured_bps / self.expected_bps

    @property
    def is_exact(self) -> bool:
        return abs(self.share - 1) <= TOLERANCE


@dataclass(frozen=True)
class Result:
    """What `check` found.

    Attributes:
        lines: both directions of all links with a rate that were loaded.
        least_payload_bps: bits per second of data that arrived on the slowest connection: what is
            left of the rate after the headers of TCP, IP and Ethernet.
        cpu: use of the machine's cores under load.
        cpu_before: the same before the load.
    """

    lines: list[Line]
    least_payload_bps: float
    cpu: CpuUse
    cpu_before: CpuUse

    @property
    def is_exact(self) -> bool:
        return all(line.is_exact for line in self.lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Rates in bits per second."""
        return {
            "exact": self.is_exact,
            "tolerance": TOLERANCE,
            "least_payload_bps": round(self.least_payload_bps),
            "cpu_busy": round(self.cpu.busy, 3),
            "cpu_busy_before": round(self.cpu_before.busy, 3),
            "cpu_stolen": round(self.cpu.stolen, 3),
            "directions": [
                {
                    "sender": str(line.sender),
                    "expected_bps": line.expected_bps,
                    "rate_bps": round(line.measured_bps),
                    "exact": line.is_exact,
                }
                for line in self.lines
            ],
        }


def check(client: Client, seconds: float) -> Result:
    """Loads all links at once for ``seconds``. Raises LabError, also if no link has a rate."""
    graph = client.graph()
    wanted = load.flows(graph)
    expected = {end: rate for flow in wanted for end, rate in _expected(graph, flow).items()}
    if not expected:
        raise LabError(f"no link in use has a rate to be checked: {GIVE_ONE}")
    meter = CpuMeter()
    time.sleep(IDLE_S)
    cpu_before = meter.use()
    with load.running(client, wanted) as received:
        time.sleep(WARM_UP_S)
        traffic: list[LinkTraffic] = []
        num_intervals = max(LEAST_INTERVALS, int(seconds / INTERVAL_S))
        begin, before, meter = time.monotonic(), received.read(), CpuMeter()
        for _ in range(num_intervals):
            traffic += sampling.measure(client, seconds / num_intervals)
        cpu = meter.use()
        pairs = zip(before, received.read(), strict=True)
        least = min(last - first for first, last in pairs) * 8 / (time.monotonic() - begin)
    rates: dict[End, list[float]] = {}
    for entry in traffic:
        for direction in entry.directions:
            rates.setdefault(direction.sender, []).append(direction.rate_bps)
    lines = [
        Line(sender, expected[sender], statistics.median(measured))
        for sender, measured in rates.items()
        if sender in expected
    ]
    return Result(lines, least, cpu, cpu_before)


def find_limit(client: Client, seconds: float, progress: Callable[[Result], None]) -> int | None:
    """The highest rate of all links, of those that were tried, at which the lab is exact; None
    when it is not exact at its own. Doubles the rates, and restores them. Raises LabError."""
    links = topology.links(client.graph())
    rates = [link.shape.least_rate_bps for link in links if link.shape.least_rate_bps]
    if not rates:
        raise LabError(f"no link has a rate to begin with: {GIVE_ONE}")
    rate, exact = min(rates), None
    try:
        while rate <= MOST_RATE_BPS:
            for link in links:
                client.ask("set", place=str(link.a), changes=[f"rate={_text(rate)}"])
            result = check(client, seconds)
            progress(result)
            if not result.is_exact:
                break
            exact, rate = rate, 2 * rate
    finally:
        for link in links:
            out, back = map(_text, (link.shape.rate_bps, link.shape.back.rate_bps))
            client.ask("set", place=str(link.a), changes=[f"out={out}", f"in={back}"])
    return exact


def summary(result: Result) -> str:
    worst = max(result.lines, key=lambda line: abs(line.share - 1))
    verdict = "exact" if result.is_exact else "NOT exact"
    text = (
        f"{verdict}: {len(result.lines)} directions loaded at once, the furthest from its rate is "
        f"{worst.sender} with {format_rate(worst.measured_bps)} of "
        f"{format_rate(worst.expected_bps)} ({worst.share - 1:+.1%}; allowed {TOLERANCE:.0%}). "
        f"The slowest connection received {format_rate(result.least_payload_bps)} of data. "
        f"CPU in use: {result.cpu.busy:.0%} ({result.cpu_before.busy:.0%} before)."
    )
    added = result.cpu.busy - result.cpu_before.busy
    if result.is_exact and added > 0 and result.cpu_before.busy <= QUIET:
        most = (1 - result.cpu_before.busy) / added
        rate = format_rate(most * max(line.expected_bps for line in result.lines))
        text += f" At this cost the CPU would be full at about {rate} per link."
    if not result.is_exact and result.cpu.stolen > MUCH_STOLEN:
        text += (
            f" This virtual machine was not given {result.cpu.stolen:.0%} of its CPU time when it "
            "wanted it: check again when its host is less busy."
        )
    return text


def _expected(graph: Any, flow: load.Flow) -> dict[End, int]:
    """The ends that send the flow, its source and perhaps a switch, with their rate.

    Empty if nothing limits it. `load.flows` connects links of one rate only.
    """
    into = topology.find_link(graph, str(flow.target))
    last = into.other(flow.target.node)
    out = topology.find_link(graph, str(flow.source))
    shapes = out.shape_from(flow.source.node), into.shape_from(last.node)
    rate = min((shape.rate_bps for shape in shapes if shape.rate_bps), default=None)
    return dict.fromkeys((flow.source, last), rate) if rate else {}


def _text(rate_bps: int | None) -> str:
    return f"{rate_bps}bit" if rate_bps else UNLIMITED
