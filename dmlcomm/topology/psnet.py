"""``psnet:P,W,R[,K=x][@i,j,...]``: one module of PSNet.

R ToR switches; P servers with R NICs, one at each ToR; W workers with one NIC, i of them at the
first ToR, j at the second, ...: spread evenly where nothing is said. Links of servers have K times
the rate of those of workers. The ToRs are one **fabric**: a worker's link can be moved from one to
another while it is in use, as a circuit switch does it, which does not take the carrier away.

Addresses, after the paper's 10.mid.swid.wid (module, switch, worker; all from 1): worker i of those
that start at ToR t is 10.1.t.i, and stays it wherever it is moved. The paper gives a server one
address, 10.mid.0.psid; here each of its NICs has its own, 10.1.t.(200 + psid) at ToR t, so that
workers and server NICs that meet at a ToR are in one network.

Source: "PSNet" (JNCA 2020), sections 3.1 and 3.2.
"""

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx

from dmlcomm.topology.graph import End, add_host, add_link, add_switch, matched, new_graph, require
from dmlcomm.topology.shape import MOST_RATE_BPS, Shape
from dmlcomm.units import format_rate

FORM = "psnet:P,W,R[,K=x][@i,j,...]"
MODULE = 1
FABRIC = "circuit"
SERVER, WORKER = "server", "worker"

# Addresses of one ToR: workers from 1, servers from 201, none above 254.
FIRST_SERVER_ADDRESS = 201
MAX_SERVERS = 54
MAX_WORKERS_OF_TOR = 200
MAX_TORS = 16


def build(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    pattern = r"(\d+),(\d+),(\d+)(?:,K=(\d+(?:\.\d+)?))?(?:@(\d+(?:,\d+)*))?"
    match = matched(spec, text, pattern, f"{FORM} (servers, workers, NICs of a server)")
    num_servers, num_workers, num_tors = (int(number) for number in match.groups()[:3])
    k = float(match[4] or 1)
    require(spec, 1 <= num_tors <= MAX_TORS, f"ToRs: from 1 to {MAX_TORS}")
    deployment = spread(num_workers, num_tors)
    if match[5]:
        deployment = tuple(int(number) for number in match[5].split(","))
        require(
            spec,
            len(deployment) == num_tors and sum(deployment) == num_workers,
            f"{num_tors} numbers behind the @ with the sum {num_workers}: workers at each ToR",
        )
    require(spec, 1 <= num_servers <= MAX_SERVERS, f"servers: from 1 to {MAX_SERVERS}")
    require(spec, num_workers >= 1, "workers: at least 1")
    most = MAX_WORKERS_OF_TOR
    require(spec, max(deployment) <= most, f"workers at a ToR: at most {most}")
    require(spec, k > 0, "K: more than 0")
    require(spec, len(shapes) == 1, f"rates: one, that of workers, not {len(shapes)}")
    graph = new_graph(spec)
    servers = [add_host(graph, SERVER) for _ in range(num_servers)]
    workers = [add_host(graph, WORKER) for _ in range(num_workers)]
    tors = [add_switch(graph, f"tor{t + 1}", FABRIC) for t in range(num_tors)]
    of_server = _of_servers(shapes[0], k, spec)
    for index, server in enumerate(servers):
        for level, tor in enumerate(tors):
            address = f"{_network(level)}.{FIRST_SERVER_ADDRESS + index}/24"
            port = End(tor, f"{server}.{level}", None)
            add_link(graph, End(server, f"eth{level}", address), port, level, of_server)
    for worker, level in zip(workers, circuit(deployment), strict=True):
        position = graph.degree(tors[level]) - num_servers + 1
        address = f"{_network(level)}.{position}/24"
        port = End(tors[level], worker, None)
        add_link(graph, End(worker, "eth0", address), port, level, shapes[0], is_circuit=True)
    return graph


def spread(workers: int, tors: int) -> tuple[int, ...]:
    """The even deployment, which the topology controller asks for: the first ToRs have one more.

    >>> spread(7, 3)
    (3, 2, 2)
    """
    if workers < 0 or tors < 1:
        raise ValueError(f"{workers} workers on {tors} ToRs: expected at least 0 on at least 1")
    each, more = divmod(workers, tors)
    return tuple(each + (tor < more) for tor in range(tors))


def spread_by_rate(workers: int, rates: Sequence[float]) -> tuple[int, ...]:
    """The deployment for ToRs at which servers have different rates: the least time of the ToR
    that is last, so a ToR gets workers as its rate is.

    Args:
        rates: by ToR, of the slowest server's NIC there; 0 for a ToR without one that works.

    >>> spread_by_rate(6, [1e9, 1e9, 5e8])
    (3, 2, 1)
    """
    if workers < 0 or not any(rate > 0 for rate in rates):
        raise ValueError(f"{workers} workers on ToRs with the rates {rates}: expected a rate")
    found = [0] * len(rates)
    for _ in range(workers):
        usable = [tor for tor, rate in enumerate(rates) if rate > 0]
        found[min(usable, key=lambda tor: (found[tor] + 1) / rates[tor])] += 1
    return tuple(found)


def circuit(deployment: Sequence[int]) -> tuple[int, ...]:
    """By worker, the index of its ToR; workers are numbered ToR by ToR.

    >>> circuit((1, 1, 4))
    (0, 1, 2, 2, 2, 2)
    """
    return tuple(tor for tor, count in enumerate(deployment) for _ in range(count))


def _network(level: int) -> str:
    return f"10.{MODULE}.{level + 1}"


def _of_servers(shape: Shape, k: float, spec: str) -> Shape:
    """Links of servers: K times the rate."""
    if shape.rate_bps is None:
        require(spec, k == 1, "K needs a rate to multiply (--rate 200mbit)")
        return shape
    rate = round(shape.rate_bps * k)
    most = f"K times the rate: at most {format_rate(MOST_RATE_BPS)}, not {format_rate(rate)}"
    require(spec, rate <= MOST_RATE_BPS, most)
    return replace(shape, rate_bps=rate)
