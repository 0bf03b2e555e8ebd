"""What ``dmlcomm plan`` prints."""

from typing import Any

from rich.table import Table

from dmlcomm import _core
from dmlcomm.planning.network import ETHERNET_BYTES, IP_AND_TCP_BYTES, PlannedNetwork
from dmlcomm.planning.pricing import Choice
from dmlcomm.units import format_bytes, format_rate

PRICE_KEYS = ["name", "seconds", "priced_by", "estimate_s", "messages", "rounds", "rail_bytes"]


def heading(network: PlannedNetwork, op: str, num_bytes: int, choice: Choice) -> str:
    rates = ", ".join(map(format_rate, network.rates_bps))
    data, frame = network.mtu - IP_AND_TCP_BYTES, network.mtu + ETHERNET_BYTES
    return (
        f"{network}: {network.num_hosts} hosts, {network.ranks_per_host} ranks each, "
        f"{len(network.rates_bps)} NICs ({rates})\n"
        f"{op} of {format_bytes(num_bytes)}: bound {_time(choice.bound_s)}, what the NICs of a "
        f"host need without headers\n"
        f"Times include headers: {data} of {frame} bytes of a frame are data at MTU {network.mtu}."
    )


def table(network: PlannedNetwork, choice: Choice) -> Table:
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


def as_json(network: PlannedNetwork, op: str, num_bytes: int, choice: Choice) -> dict[str, Any]:
    """Times in seconds, rates in bits per second; null is what was not counted."""
    return {
        "topology": str(network),
        "hosts": network.num_hosts,
        "ranks_per_host": network.ranks_per_host,
        "rates_bps": list(network.rates_bps),
        "mtu": network.mtu,
        "op": op,
        "bytes": num_bytes,
        "bound_s": choice.bound_s,
        "chosen": choice.chosen.name,
        "fastest": choice.fastest.name,
        "reason": choice.reason,
        "algorithms": [{key: getattr(price, key) for key in PRICE_KEYS} for price in choice.prices],
    }


def _cells(network: PlannedNetwork, price: _core.Price, bound_s: float) -> list[str]:
    return [
        "-" if price.messages is None else str(price.messages),
        "-" if price.rounds is None else str(price.rounds),
        *(
            map(format_bytes, price.rail_bytes)
            if price.rail_bytes
            else "-" * len(network.rates_bps)
        ),
        _time(price.seconds),
        f"{price.seconds / bound_s:.3f}" if bound_s else "-",
        _time(price.estimate_s),
        price.priced_by,
    ]


def _time(seconds: float) -> str:
    for unit, name in ((1, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds / 1e-6:.4g} us"
