"""What ``dmlcomm plan`` prints."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dmlcomm import _core, _shell
from dmlcomm.planning.network import ETHERNET_BYTES, IP_AND_TCP_BYTES, PlannedNetwork
from dmlcomm.planning.pricing import Choice
from dmlcomm.units import format_bytes, format_rate, format_time

if TYPE_CHECKING:
    from dmlcomm.planning.measure import Measured
    from dmlcomm.planning.rails import HostRail, ShownRail

PRICE_KEYS = ["name", "seconds", "priced_by", "estimate_s", "messages", "rounds", "rail_bytes"]


@dataclass(frozen=True)
class Planned:
    """An operation on a network. ``num_bytes``: see `pricing.bound_s`."""

    network: PlannedNetwork
    op: str
    num_bytes: int
    choice: Choice


def heading(planned: Planned) -> str:
    network = planned.network
    rates = ", ".join(map(format_rate, network.rates_bps))
    data, frame = network.mtu - IP_AND_TCP_BYTES, network.mtu + ETHERNET_BYTES
    return (
        f"{network}: {network.num_hosts} hosts, {network.ranks_per_host} ranks each, "
        f"{len(network.rates_bps)} NICs ({rates})\n"
        f"{planned.op} of {format_bytes(planned.num_bytes)}: bound "
        f"{format_time(planned.choice.bound_s)}, what the NICs of a host need without headers\n"
        f"Times include headers: {data} of {frame} bytes of a frame are data at MTU {network.mtu}."
    )


def table(planned: Planned) -> Table:
    network, choice = planned.network, planned.choice
    rail = "level" if network.sizes else "rail"
    found = Table()
    found.add_column("algorithm", no_wrap=True)
    rails = [f"{rail} {number}" for number in range(len(network.rates_bps))]
    for column in ("messages", "rounds", *rails, "time", "x bound", "estimate", "priced by"):
        found.add_column(column, justify="right", no_wrap=True)
    for price in choice.prices:
        style = "bold green" if price is choice.chosen else ""
        found.add_row(price.name, *_cells(network, price, choice.bound_s), style=style)
    return found


def as_json(planned: Planned) -> dict[str, Any]:
    """Times in seconds, rates in bits per second; null is what was not counted."""
    network, choice = planned.network, planned.choice
    return {
        "topology": str(network),
        "hosts": network.num_hosts,
        "ranks_per_host": network.ranks_per_host,
        "rates_bps": list(network.rates_bps),
        "mtu": network.mtu,
        "op": planned.op,
        "bytes": planned.num_bytes,
        "bound_s": choice.bound_s,
        "chosen": choice.chosen.name,
        "fastest": choice.fastest.name,
        "reason": choice.reason,
        "algorithms": [{key: getattr(price, key) for key in PRICE_KEYS} for price in choice.prices],
    }


def rails_table(measured: "Measured") -> Table:
    """What each rail has carried while all ranks sent, beside what its drivers say."""
    rail = "level" if measured.network.sizes else "rail"
    found = _shell.new_table(
        "Measured rails",
        *(rail, "interface", "driver", "slowest host", "fastest host"),
        *("round trip", "message", "sent again"),
    )
    for shown in measured.rails:
        found.add_row(
            *(str(shown.number), ", ".join(shown.interfaces)),
            format_rate(shown.driver_bps) if shown.driver_bps else "unknown",
            *(_carried(shown.slowest), _carried(shown.fastest)),
            format_time(shown.round_trip_us * 1e-6) if shown.round_trip_us else "unknown",
            "-" if shown.message_s is None else format_time(shown.message_s),
            format_bytes(shown.bytes_resent),
        )
    return found


def rails_as_json(rails: "Sequence[ShownRail]") -> list[dict[str, Any]]:
    """By rail, with each host; `ShownRail` and `HostRail` say what the figures mean."""
    return [asdict(rail) for rail in rails]


def _carried(rail: "HostRail") -> str:
    return f"{format_rate(rail.shown_bps)}, {rail.host}" if rail.shown_bps else "unknown"


def _cells(network: PlannedNetwork, price: _core.Price, bound_s: float) -> list[str]:
    return [
        "-" if price.messages is None else str(price.messages),
        "-" if price.rounds is None else str(price.rounds),
        *(
            map(format_bytes, price.rail_bytes)
            if price.rail_bytes
            else "-" * len(network.rates_bps)
        ),
        format_time(price.seconds),
        f"{price.seconds / bound_s:.3f}" if bound_s else "-",
        format_time(price.estimate_s),
        price.priced_by,
    ]
