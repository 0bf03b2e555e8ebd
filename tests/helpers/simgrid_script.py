"""Plays flows in SimGrid; JSON on the standard input and output (`helpers.simgrid_runs` starts it).

Reads capacities (bit/s) and latencies (s) by link, and flows as [path, bytes, start (s)]. Writes
the ends of the flows (s), or if asked for rates, those of all flows at once (bit/s), whatever
their sizes and starts are; and the CPU time that SimGrid took (s).
"""

import json
import math
import sys
import time
from typing import Any

import simgrid
from simgrid import this_actor

# Plain max-min sharing: no model of TCP, and no acknowledgements. Flows get shares in inverse
# proportion to their latencies, which therefore have to be equal.
OPTIONS = (
    *("network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0"),
    *("maxmin/precision:1e-9", "surf/precision:1e-9"),
)
ENDLESS_BYTES = 10**13


class Network:
    """The links, and for each path two hosts that have it as their route."""

    def __init__(self, capacities: list[float], latencies: list[float], paths: Any) -> None:
        zone = simgrid.NetZone.create_full_zone("zone")
        links = []
        for i, (capacity, latency) in enumerate(zip(capacities, latencies, strict=True)):
            link = zone.create_link(f"link{i}", capacity / 8)
            link.set_latency(latency)
            links.append(link.seal())
        # A path is a pair out of two groups of hosts: few hosts are enough for many paths.
        side = math.isqrt(len(paths)) + 1
        senders, self.receivers = (
            [zone.create_host(f"{role}{i}", 1).seal() for i in range(side)]
            for role in ("sender", "receiver")
        )
        self.main_host = senders[0]
        self.ends = {}
        for i, path in enumerate(paths):
            sender, receiver = senders[i // side], self.receivers[i % side]
            route = [simgrid.LinkInRoute(links[link]) for link in path]
            zone.add_route(sender.netpoint, receiver.netpoint, None, None, route, False)
            self.ends[path] = sender, receiver
        zone.seal()

    def send(self, path: list[int], num_bytes: int) -> Any:
        return simgrid.Comm.sendto_async(*self.ends[tuple(path)], num_bytes)


def rates(network: Network, flows: list[Any], found: dict[str, Any]) -> None:
    comms = [network.send(path, ENDLESS_BYTES) for path, _, _ in flows]
    this_actor.sleep_for(1)
    found["rates"] = [(ENDLESS_BYTES - comm.remaining) * 8 for comm in comms]
    for comm in comms:
        comm.cancel()


def ends(network: Network, flows: list[Any], found: dict[str, Any]) -> None:
    comms = {}
    for i in sorted(range(len(flows)), key=lambda i: flows[i][2]):
        path, num_bytes, start_s = flows[i]
        if start_s > simgrid.Engine.clock:
            this_actor.sleep_until(start_s)
        comms[i] = network.send(path, num_bytes)
    simgrid.Comm.wait_all(list(comms.values()))
    found["ends"] = [comms[i].finish_time for i in range(len(comms))]


def main() -> None:
    asked = json.load(sys.stdin)
    options = ["--log=root.thresh:critical", *(f"--cfg={option}" for option in OPTIONS)]
    engine = simgrid.Engine(["flows", *options])
    flows = asked["flows"]
    paths = sorted({tuple(path) for path, _, _ in flows})
    network = Network(asked["capacities"], asked["latencies"], paths)
    found: dict[str, Any] = {}
    play = rates if asked["wants_rates"] else ends
    simgrid.Actor.create("main", network.main_host, play, network, flows, found)
    begin = time.process_time()
    engine.run()
    found["cpu_s"] = time.process_time() - begin
    json.dump(found, sys.stdout)


main()
