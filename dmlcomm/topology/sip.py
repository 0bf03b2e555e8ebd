"""``sip:PxTxN``: a tree of switches in which circuits can be moved, on two levels.

P pods of T top-of-rack switches (ToRs) with N servers each; an aggregation switch per pod, and a
core switch above them if there are several. A link leads from each server to a ToR, from each ToR
to an aggregation switch, and from there to the core. All links have the rate that is given, or one
each for servers, ToRs and aggregation switches.

Circuit switches are between servers and ToRs, and between ToRs and aggregation switches: server 8
can be moved to ToR 2 (``host8=tor2``), the uplink of ToR 3 to aggregation switch 1 (``tor3=agg1``).
All servers are in one network, so addresses stay: the i-th server of ToR t is 10.0.t.i (from 1).

Source: "Silicon photonic switch-enabled server regrouping using bandwidth steering for distributed
deep learning training", section IV.
"""

from collections.abc import Sequence

import networkx as nx

from dmlcomm.topology.graph import End, add_host, add_link, add_switch, matched, new_graph, require
from dmlcomm.topology.shape import Shape

FORM = "sip:PxTxN (pods, ToRs of a pod, servers of a ToR)"
SERVERS, UPLINKS = "servers", "uplinks"  # the fabrics
OF_SERVERS, OF_TORS, OF_PODS = range(3)  # levels of links

MAX_TORS = 254
MAX_SERVERS = 254


def build(spec: str, text: str, shapes: Sequence[Shape]) -> nx.Graph:
    match = matched(spec, text, r"(\d+)x(\d+)x(\d+)", FORM)
    pods, tors, servers = map(int, match.groups())
    require(spec, min(pods, tors, servers) >= 1, "pods, ToRs and servers: at least 1")
    require(spec, pods * tors <= MAX_TORS, f"ToRs: at most {MAX_TORS}")
    require(spec, servers <= MAX_SERVERS, f"servers of a ToR: at most {MAX_SERVERS}")
    require(spec, len(shapes) in (1, 3), f"rates: one, or three, not {len(shapes)}")
    of_servers, of_tors, of_pods = shapes if len(shapes) == 3 else (shapes[0],) * 3
    graph = new_graph(spec)
    for _ in range(pods * tors * servers):
        add_host(graph)
    edges = [add_switch(graph, f"tor{t + 1}", SERVERS) for t in range(pods * tors)]
    above = [add_switch(graph, f"agg{p + 1}", UPLINKS) for p in range(pods)]
    for position, tor in enumerate(edges):
        for server in range(servers):
            host = f"host{position * servers + server}"
            nic = End(host, "eth0", f"10.0.{position + 1}.{server + 1}/16")
            add_link(graph, nic, End(tor, host, None), OF_SERVERS, of_servers, is_circuit=True)
        uplink, port = End(tor, f"{tor}up", None), End(above[position // tors], tor, None)
        add_link(graph, uplink, port, OF_TORS, of_tors, is_circuit=True)
    if pods > 1:
        core = add_switch(graph, "core")
        for switch in above:
            uplink = End(switch, f"{switch}up", None)
            add_link(graph, uplink, End(core, switch, None), OF_PODS, of_pods)
    return graph
