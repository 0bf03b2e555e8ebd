"""Topologies, addresses, routes and what people write: pure, no namespace is made."""

import ipaddress
import itertools

import networkx as nx
import pytest

from dmlcomm.lab import LabError, build
from dmlcomm.lab.routes import Hop, routing_table
from dmlcomm.lab.shaping import burst_bytes, packet_bytes, queue_bytes
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind
from dmlcomm.topology.shape import (
    Shape,
    apply_changes,
    format_link_rate,
    parse_delay_us,
    parse_link_rate,
    parse_loss,
)


def count(graph, kind):
    return len(topology.nodes_of_kind(graph, kind))


def addresses(graph, host):
    return [end.address for end in topology.ends_of(graph, host)]


def switches_of(graph, host):
    return [link.other(host).node for link in topology.links_of(graph, host)]


@pytest.mark.parametrize(
    ("spec", "hosts", "nics", "switches", "routers"),
    [
        ("flat:1,1", 1, 1, 1, 0),
        ("flat:9,2", 9, 2, 2, 0),
        ("bcube:3,2", 9, 2, 6, 0),
        ("bcube:2,3", 8, 3, 12, 0),
        ("grid:2x3", 6, 2, 5, 0),
        ("grid:4x2x2", 16, 3, 20, 0),
        ("fattree:2", 2, 1, 0, 5),
        ("fattree:4", 16, 1, 0, 20),
        ("fattree:4,r=2,hosts=6", 6, 1, 0, 20),
        ("clos:2x3x4,2x3", 24, 1, 0, 16),
    ],
)
def test_topology_has_the_parts_of_its_definition(spec, hosts, nics, switches, routers):
    graph = build(spec)
    assert count(graph, NodeKind.HOST) == hosts
    assert count(graph, NodeKind.SWITCH) == switches
    assert count(graph, NodeKind.ROUTER) == routers
    for host in topology.hosts(graph):
        assert topology.interfaces(graph, host) == [f"eth{level}" for level in range(nics)]


@pytest.mark.parametrize("spec", ["bcube:3,2", "bcube:2,3", "grid:2x3x4"])
def test_hosts_share_a_switch_on_a_level_if_they_differ_in_that_digit_only(spec):
    graph = build(spec)
    for a, b in itertools.combinations(topology.hosts(graph), 2):
        digits = zip(graph.nodes[a]["digits"], graph.nodes[b]["digits"], strict=True)
        different = [level for level, (x, y) in enumerate(digits) if x != y]
        pairs = zip(switches_of(graph, a), switches_of(graph, b), strict=True)
        shared = [level for level, (x, y) in enumerate(pairs) if x == y]
        assert shared == (different if len(different) == 1 else [])


def test_addresses_follow_the_scheme():
    # Host 5 of bcube:3,2 has v_0 = 2, v_1 = 1: port 2 of switch 0.1, port 1 of switch 1.2.
    assert addresses(build("bcube:3,2"), "host5") == ["10.0.1.3/24", "10.1.2.2/24"]
    assert addresses(build("flat:9,2"), "host8") == ["10.0.0.9/24", "10.1.0.9/24"]
    # Host 5 of fattree:4 is the second of edge 0 in pod 1.
    assert addresses(build("fattree:4"), "host5") == ["10.1.0.3/31"]
    assert build("flat:2,1").nodes["host1"]["management"] == "10.255.0.2/16"


@pytest.mark.parametrize(
    "spec", ["flat:254,2", "bcube:4,3", "grid:2x3x4", "fattree:8", "clos:2x3x4,2x3"]
)
def test_no_address_is_given_twice(spec):
    graph = build(spec)
    given = [end.ip for link in topology.links(graph) for end in link.ends if end.address]
    given += [graph.nodes[h]["management"].partition("/")[0] for h in topology.hosts(graph)]
    assert len(set(given)) == len(given)


def test_links_above_the_edge_are_slower_by_the_over_subscription():
    graph = build("fattree:4,r=4", [Shape(parse_link_rate("200mbit"))])
    rates = {(link.level, link.shape.rate_bps) for link in topology.links(graph)}
    assert rates == {(0, 200_000_000), (1, 50_000_000), (2, 50_000_000)}


def test_a_fat_tree_is_a_clos():
    shapes = [Shape(parse_link_rate("200mbit"))]
    tree, clos = build("fattree:4,r=4", shapes), build("clos:4x2x2,2x2,r=4x1", shapes)
    assert topology.links(tree) == topology.links(clos)
    assert dict(tree.nodes(data=True)) == dict(clos.nodes(data=True))


def test_links_of_a_clos_share_what_over_subscription_leaves():
    graph = build("clos:2x4x8,2x4,r=2x8", [Shape(800)])
    rates = {(link.level, link.shape.rate_bps) for link in topology.links(graph)}
    assert rates == {(0, 800), (1, 8 * 800 // 2 // 2), (2, 4 * 8 * 800 // 16 // (2 * 4))}


def test_every_level_can_have_its_own_rate():
    graph = build("flat:4,2", [Shape(200), Shape(50)])
    assert {(link.level, link.shape.rate_bps) for link in topology.links(graph)} == {
        (0, 200),
        (1, 50),
    }


def test_graph_survives_json():
    graph = build("bcube:2,2", [Shape(10**6, 500, 0.01)])
    copy = topology.from_json(topology.to_json(graph))
    assert topology.links(copy) == topology.links(graph)
    assert topology.hosts(copy) == topology.hosts(graph)
    assert dict(copy.nodes(data=True)) == dict(graph.nodes(data=True))


def walk(graph, tables, source, address):
    """Nodes on the way to an address, taking the first of several ways each time."""
    owner = {end.ip: end.node for link in topology.links(graph) for end in link.ends if end.address}
    path = [source]
    while path[-1] != owner[address]:
        assert len(path) < 10, path
        path.append(owner[_next_hop(graph, tables, path[-1], address)])
    return path


def _next_hop(graph, tables, node, address):
    target = ipaddress.ip_address(address)
    attached = [ipaddress.ip_interface(end.address) for end in topology.ends_of(graph, node)]
    if any(target in interface.network for interface in attached):
        return address
    fitting = {ipaddress.ip_network(n): hops for n, hops in tables[node].items()}
    best = max((n for n in fitting if target in n), key=lambda n: n.prefixlen)
    return fitting[best][0].gateway


@pytest.mark.parametrize("spec", ["flat:4,2", "bcube:3,2", "grid:2x3x2", "fattree:4,hosts=10"])
def test_every_host_reaches_every_address_by_a_shortest_path(spec):
    graph = build(spec)
    tables = routing_table(graph)
    # Between addresses a switch is no hop.
    switches = topology.nodes_of_kind(graph, NodeKind.SWITCH)
    for source, target in itertools.permutations(topology.hosts(graph), 2):
        for end in topology.ends_of(graph, target):
            path = walk(graph, tables, source, end.ip)
            via = nx.shortest_path_length(graph, source, target)
            hops = len(path) - 1
            assert hops >= (via // 2 if switches else via)
            assert hops <= (via // 2 + 1 if switches else via)


def test_without_forwarding_hosts_know_their_own_networks_only_and_routers_go_on():
    assert not any(routing_table(build("bcube:2,2"), hosts_forward=False).values())
    # The other NIC of the server is at the server itself.
    of_worker = routing_table(build("psnet:1,2,2"), hosts_forward=False)["worker0"]
    assert of_worker == {"10.1.2.201/32": (Hop("10.1.1.201", "eth0"),)}
    fat_tree = build("fattree:4")
    assert routing_table(fat_tree, hosts_forward=False) == routing_table(fat_tree)


def test_fat_tree_uses_all_equal_paths():
    tables = routing_table(build("fattree:4"))
    assert len(tables["edge0.0"]["10.3.1.0/24"]) == 2
    assert len(tables["agg0.0"]["10.3.1.0/24"]) == 2
    assert tables["host0"] == {"0.0.0.0/0": (Hop("10.0.0.0", "eth0"),)}


def test_routes_avoid_a_link_that_is_down():
    graph = build("fattree:4")
    link = topology.find_link(graph, "edge0.0:port2")
    topology.update_link(graph, link, link.shape, up=False)
    tables = routing_table(graph)
    assert {hop.interface for hop in tables["edge0.0"]["10.3.1.0/24"]} == {"port3"}
    # What goes through the aggregation switch that has lost the edge takes the other one.
    assert {hop.interface for hop in tables["edge0.1"]["10.0.0.0/24"]} == {"port3"}


def test_a_host_has_no_route_to_its_own_network_while_its_cable_is_pulled():
    graph = build("flat:3,2")
    link = topology.find_link(graph, "host0:eth1")
    topology.update_link(graph, link, link.shape, up=False)
    assert routing_table(graph) == {"host0": {}, "host1": {}, "host2": {}}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("torus:3", "torus:3"),
        ("flat", "flat:N,k"),
        ("flat:3", "flat:N,k"),
        ("flat:0,1", "hosts"),
        ("flat:300,1", "254"),
        ("bcube:1,2", "ports"),
        ("bcube:2,0", "levels"),
        ("bcube:20,4", "1024"),
        ("grid:3xx", "grid:AxBx"),
        ("fattree:3", "even"),
        ("fattree:3000", "from 2 to 16"),
        ("fattree:4,hosts=5000000000", "from 1 to 16"),
        ("fattree:4,hosts=17", "16"),
        ("fattree:4,r=0.5", "r: at least 1"),
        ("fattree:4,x=2", "fattree:p"),
    ],
)
def test_impossible_topology_is_refused_with_its_reason(spec, reason):
    with pytest.raises(LabError, match=reason):
        build(spec)


def test_number_of_rates_has_to_fit():
    with pytest.raises(LabError, match="one, or 2, not 3"):
        build("bcube:3,2", [Shape(1), Shape(2), Shape(3)])


def test_an_unknown_place_names_what_there_is():
    graph = build("flat:2,2")
    with pytest.raises(LabError, match="it has eth0, eth1"):
        topology.find_link(graph, "host1:eth7")
    with pytest.raises(LabError, match='no node "host9"'):
        topology.find_link(graph, "host9:eth0")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200mbit", 200_000_000),
        ("1.5gbit", 1_500_000_000),
        ("500kbit", 500_000),
        ("unlimited", None),
    ],
)
def test_rates_are_read(text, rate):
    assert parse_link_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "200", "200mb", "-1mbit", "1kbit", "100gbit"])
def test_other_rates_are_refused(text):
    with pytest.raises(LabError, match=r"rate|200mbit"):
        parse_link_rate(text)


def test_delay_and_loss_are_read():
    assert (parse_delay_us("1.5ms"), parse_delay_us("0"), parse_delay_us("2s")) == (
        1500,
        0,
        2_000_000,
    )
    assert (parse_loss("1%"), parse_loss("0.5%"), parse_loss("100%")) == (0.01, 0.005, 1.0)
    for wrong in ("1", "101%", "x%"):
        with pytest.raises(LabError, match="loss"):
            parse_loss(wrong)


def test_changes_add_up():
    shape, up = apply_changes(["rate=50mbit", "loss=1%", "down"], Shape(200_000_000), True)
    assert (shape, up) == (Shape(50_000_000, 0, 0.01), False)
    with pytest.raises(LabError, match="sideways"):
        apply_changes(["sideways"], Shape(), True)
    with pytest.raises(LabError, match="MTU 100"):
        apply_changes(["mtu=100"], Shape(), True)


def test_a_direction_has_a_rate_of_its_own_until_both_are_set():
    shape, _ = apply_changes(["out=500kbit", "mtu=1500"], Shape(2_000_000), True, first=False)
    assert (shape.rate_bps, shape.back.rate_bps, shape.mtu) == (2_000_000, 500_000, 1500)
    assert shape.least_rate_bps == shape.back.least_rate_bps == 500_000
    shape, _ = apply_changes(["out=unlimited"], shape, True)
    assert (shape.rate_bps, shape.back.rate_bps) == (None, 500_000)
    assert str(shape) == "unlimited ->, 500 kb/s <-, MTU 1500"
    assert apply_changes(["in=unlimited"], shape, True)[0] == Shape(None, mtu=1500)
    assert apply_changes(["rate=1mbit"], shape, True)[0] == Shape(1_000_000, mtu=1500)


def test_rates_are_shown_in_the_unit_that_fits():
    assert [format_link_rate(r) for r in (None, 50, 2e5, 2e8, 1.5e9)] == [
        "unlimited",
        "50 b/s",
        "200 kb/s",
        "200 Mb/s",
        "1.5 Gb/s",
    ]


@pytest.mark.parametrize("mtu", [576, 1500, 9000])
@pytest.mark.parametrize("rate", [100_000, 10**7, 2 * 10**8, 10**9, 10**10])
def test_a_burst_holds_the_largest_packet_so_that_tbf_does_not_cut_it(rate, mtu):
    largest = packet_bytes(rate, mtu)
    frames = -(-largest // (mtu - 52))
    assert burst_bytes(rate, mtu) >= largest + frames * 66
    assert burst_bytes(rate, mtu) <= 1.25 * max(rate * 0.002 / 8, 4 * (mtu + 14))
    assert queue_bytes(rate) >= 256 * 1024
