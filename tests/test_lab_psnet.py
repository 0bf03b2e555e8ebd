"""PSNet in the lab: its graph and routes, and links that move while they are in use."""

import subprocess
import sys

import pytest

from dmlcomm.lab import Lab, LabError, build, sampling
from dmlcomm.lab.client import Client
from dmlcomm.lab.draw import draw
from dmlcomm.lab.load import flows
from dmlcomm.lab.routes import Hop, routing_table
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind
from dmlcomm.topology.psnet import modules_of
from dmlcomm.topology.shape import Shape, take_move
from helpers.lab_check import exact_report

pytestmark = pytest.mark.xdist_group("lab_psnet")

DEADLINE_S = 30
RATE = Shape(100_000_000)


def tor_of(graph, worker):
    return topology.find_link(graph, f"{worker}:eth0").b.node


def workers_of(graph):
    """By ToR, its workers."""
    workers = topology.hosts_of_role(graph, "worker")
    tors = topology.nodes_of_kind(graph, NodeKind.SWITCH)
    return [[w for w in workers if tor_of(graph, w) == tor] for tor in tors]


@pytest.mark.parametrize(
    ("spec", "servers", "deployment"),
    [
        ("psnet:2,6,3", 2, [2, 2, 2]),
        ("psnet:2,6,3@1,1,4", 2, [1, 1, 4]),
        ("psnet:1,5,2", 1, [3, 2]),
        ("psnet:3,2,3@0,0,2", 3, [0, 0, 2]),
        ("psnet:1,1,1", 1, [1]),
    ],
)
def test_module_has_the_parts_of_its_definition(spec, servers, deployment):
    graph = build(spec)
    names = [f"server{p}" for p in range(servers)]
    names += [f"worker{w}" for w in range(sum(deployment))]
    assert topology.hosts(graph) == names
    assert [len(workers) for workers in workers_of(graph)] == deployment
    for server in topology.hosts_of_role(graph, "server"):
        links = topology.links_of(graph, server)
        assert [link.a.interface for link in links] == [f"eth{t}" for t in range(len(deployment))]
        assert [link.b.node for link in links] == [f"tor{t + 1}" for t in range(len(deployment))]


def test_workers_and_server_nics_of_a_tor_are_in_one_network():
    graph = build("psnet:2,6,3@1,1,4")
    address = {str(e): e.address for link in topology.links(graph) for e in link.ends if e.address}
    assert address["worker0:eth0"] == "10.1.1.1/24"
    assert address["worker5:eth0"] == "10.1.3.4/24"
    assert [address[f"server1:eth{t}"] for t in range(3)] == [
        "10.1.1.202/24",
        "10.1.2.202/24",
        "10.1.3.202/24",
    ]
    assert len(set(address.values())) == len(address)


def test_modules_are_joined_by_a_switch_each_with_r_times_a_servers_rate():
    graph = build("psnet:1,2,2,K=2+1,1,2,K=2+1,1,2,K=2", [RATE])
    assert topology.hosts_of_role(graph, "server") == ["server0", "server1", "server2"]
    assert [len(workers) for workers in workers_of(graph)] == [1, 1, 1, 0, 1, 0]
    assert modules_of(graph) == [["tor1", "tor2"], ["tor3", "tor4"], ["tor5", "tor6"]]
    joins = {
        (link.a.node, link.b.node): link.shape.rate_bps
        for link in topology.links(graph)
        if "super" in link.b.node
    }
    above = {(f"tor{t}", f"super{(t + 1) // 2}"): 800_000_000 for t in range(1, 7)}
    between = {(f"super{a}", f"super{b}"): 400_000_000 for a, b in ((1, 2), (1, 3), (2, 3))}
    assert joins == above | between
    assert topology.find_link(graph, "server2:eth1").a.address == "10.3.2.201/24"


def test_a_server_answers_workers_of_another_module_by_the_nic_of_their_tors_number():
    graph = build("psnet:1,2,2+1,2,2")
    table = routing_table(graph)
    assert table["server0"]["10.2.1.1/32"] == (Hop("10.1.1.254", "eth0"),)
    assert table["server0"]["10.2.2.1/32"] == (Hop("10.1.2.254", "eth1"),)
    assert table["worker0"]["10.2.2.201/32"] == (Hop("10.1.1.254", "eth0"),)
    assert table["super1"]["10.2.2.201/32"] == (Hop("172.16.0.1", "module2"),)
    moved(graph, "worker2", "tor4")
    assert routing_table(graph)["server0"]["10.2.1.1/32"] == (Hop("10.1.2.254", "eth1"),)
    assert routing_table(graph)["super2"]["10.2.1.1/32"] == (Hop("10.2.1.1", "port1"),)


def test_links_of_servers_have_k_times_the_rate():
    graph = build("psnet:2,6,3,K=2.5", [RATE])
    rates = {
        link.a.node.rstrip("0123456789"): link.shape.rate_bps for link in topology.links(graph)
    }
    assert rates == {"server": 250_000_000, "worker": 100_000_000}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("psnet:2,6", "psnet:P,W,R"),
        ("psnet:2,6,3,k=2", "psnet:P,W,R"),
        ("psnet:0,6,3", "servers"),
        ("psnet:2,0,3", "workers"),
        ("psnet:2,6,0", "ToRs"),
        ("psnet:2,6,3@2,4", "3 numbers behind the @"),
        ("psnet:2,6,3@1,1,3", "sum 6"),
        ("psnet:60,6,3", "from 1 to 53"),
        ("psnet:1,500,2", "at most 200"),
        ("psnet:2,6,3,K=0", "K: more than 0"),
        ("psnet:2,6,3,K=1000", "K times the rate"),
        ("psnet:2,6,3+2,6,2", "same R and K"),
        ("psnet:2,6,3+2,6,3,K=2", "same R and K"),
        ("psnet:1,1,1+1,1,1+1,1,1", "at most 2 with 1 ToRs each, not 3"),
    ],
)
def test_impossible_module_is_refused_with_its_reason(spec, reason):
    with pytest.raises(LabError, match=reason):
        build(spec, [RATE])


def test_k_needs_a_rate():
    with pytest.raises(LabError, match="K needs a rate"):
        build("psnet:2,6,3,K=2")


@pytest.mark.parametrize(
    ("spec", "servers"), [("fattree:4@0,2,2,2", 2), ("fattree:4,r=2@1,1,1,1,2,2", 4)]
)
def test_fat_tree_places_workers_edge_by_edge(spec, servers):
    graph = build(spec, [RATE])
    assert len(topology.hosts_of_role(graph, "server")) == servers
    workers = topology.hosts_of_role(graph, "worker")
    placed = [topology.links_of(graph, worker)[0].other(worker).node for worker in workers]
    edges = [node for node in topology.nodes_of_kind(graph, NodeKind.ROUTER) if "edge" in node]
    deployment = [int(number) for number in spec.partition("@")[2].split(",")]
    assert [placed.count(edge) for edge in edges[: len(deployment)]] == deployment


@pytest.mark.parametrize("spec", ["fattree:4@3,0", "fattree:4@0,0", "fattree:4,hosts=4@1,1"])
def test_fat_tree_refuses_what_does_not_fit_an_edge(spec):
    with pytest.raises(LabError, match=r"workers at an edge|fattree:p"):
        build(spec)


def moved(graph, worker, tor):
    topology.move_link(graph, topology.find_link(graph, f"{worker}:eth0"), tor)
    return graph


def test_a_moved_link_keeps_address_and_shape():
    graph = build("psnet:2,6,3", [RATE])
    before = topology.find_link(graph, "worker0:eth0")
    link = topology.find_link(moved(graph, "worker0", "tor3"), "worker0:eth0")
    assert (link.a, link.shape) == (before.a, before.shape)
    assert (link.b.node, link.b.interface, link.level) == ("tor3", "worker0", 2)
    assert [len(workers) for workers in workers_of(graph)] == [1, 2, 3]
    assert topology.links(topology.from_json(topology.to_json(graph))) == topology.links(graph)


@pytest.mark.parametrize(
    ("spec", "place", "target", "reason"),
    [
        ("psnet:2,6,3", "worker0:eth0", "tor4", "has tor1, tor2, tor3"),
        ("psnet:2,6,3", "worker0:eth0", "server0", "has tor1, tor2, tor3"),
        ("psnet:1,2,2+1,2,2", "worker2:eth0", "tor2", "has tor3, tor4"),
        ("psnet:1,2,2+1,2,2", "tor1:tor1up", "super2", "NIC of a worker"),
        ("psnet:2,6,3", "server0:eth0", "tor2", "NIC of a worker"),
        ("flat:2,1", "host0:eth0", "tor2", "NIC of a worker"),
        ("fattree:4@0,2,2,2", "worker0:eth0", "tor2", "NIC of a worker"),
    ],
)
def test_what_cannot_be_moved_is_refused(spec, place, target, reason):
    graph = build(spec)
    with pytest.raises(LabError, match=reason):
        topology.move_link(graph, topology.find_link(graph, place), target)


def test_a_move_is_told_from_other_changes():
    assert take_move(["rate=50mbit", "tor=2", "down"]) == ("tor2", ["rate=50mbit", "down"])
    assert take_move(["up"]) == (None, ["up"])
    with pytest.raises(LabError, match="tor=two"):
        take_move(["tor=two"])


def test_routes_lead_over_the_tor_at_which_a_worker_is():
    graph = build("psnet:2,4,2")
    before = routing_table(graph)
    assert before["server0"] == {}
    assert before["worker0"]["10.1.2.201/32"] == (Hop("10.1.1.201", "eth0"),)
    assert "10.1.1.201/32" not in before["worker0"]
    after = routing_table(moved(graph, "worker0", "tor2"))
    # The server sends to the worker through its other NIC, the worker to the server likewise.
    assert after["server0"] == {"10.1.1.1/32": (Hop("10.1.1.1", "eth1"),)}
    assert after["worker0"]["10.1.1.201/32"] == (Hop("10.1.2.201", "eth0"),)
    assert after["worker0"]["10.1.2.201/32"] == (Hop("10.1.2.201", "eth0"),)
    # Workers at different ToRs meet at servers.
    both = (Hop("10.1.2.201", "eth0"), Hop("10.1.2.202", "eth0"))
    assert after["worker0"]["10.1.1.2/32"] == both
    assert routing_table(moved(graph, "worker0", "tor1")) == before


def test_routes_avoid_a_nic_that_is_down():
    graph = build("psnet:2,4,2")
    link = topology.find_link(graph, "server0:eth0")
    topology.update_link(graph, link, link.shape, up=False)
    assert routing_table(graph)["worker0"]["10.1.1.201/32"] == (Hop("10.1.1.202", "eth0"),)
    assert routing_table(graph)["server0"]["10.1.1.1/32"] == (Hop("10.1.2.202", "eth1"),)


@pytest.mark.parametrize(
    "spec", ["psnet:2,6,3,K=2@1,1,4", "psnet:1,2,2+1,2,2", "fattree:4@0,2,2,2"]
)
def test_draw_writes_a_picture(spec, tmp_path):
    pytest.importorskip("matplotlib")
    draw(build(spec, [RATE]), tmp_path / "lab.png")
    assert (tmp_path / "lab.png").read_bytes().startswith(b"\x89PNG")


def test_the_load_reaches_both_directions_of_every_link():
    graph = moved(build("psnet:2,6,3", [RATE]), "worker0", "tor2")
    ends = set()
    for flow in flows(graph):
        last = topology.find_link(graph, str(flow.target)).other(flow.target.node)
        ends |= {str(flow.source), str(last)}
    assert ends == {str(end) for link in topology.links(graph) for end in link.ends}


@pytest.fixture(scope="module")
def lab(lab_is_possible):
    with Lab("psnet:2,3,3", rate="100mbit") as built:
        yield built


def output(lab, node, *command):
    result = lab.exec(node, command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 0, result.stderr
    return result.stdout


# Sends back what it gets, to one client.
ECHO = """
import socket
server = socket.create_server(("", 5007))
print("ready", flush=True)
connection, _ = server.accept()
while data := connection.recv(65536):
    connection.sendall(data)
"""

# Sends for ever, and prints a line for every piece that has come back unchanged.
STREAM = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 5007), 5)  # also to wait for an answer
piece = bytes(range(256)) * 512
while True:
    connection.sendall(piece)
    got = bytearray()
    while len(got) < len(piece):
        data = connection.recv(65536)
        assert data, "the connection has ended"
        got += data
    assert got == piece
    print("back", flush=True)
"""
PIECES = 4
PIECE_BYTES = 256 * 512
MOST_LINES = 1000


def sent_bytes(lab):
    """Bytes of whole frames by place."""
    with Client(lab.name) as client:
        traffic = sampling.measure(client, 0.05)
    return {str(d.sender): d.bytes for entry in traffic for d in entry.directions}


def wait_for_traffic(lab, stream, *places):
    """Until all places have sent several pieces more, while the stream goes on."""
    start = sent_bytes(lab)
    for _ in range(MOST_LINES):
        assert stream.stdout.readline() == b"back\n"
        now = sent_bytes(lab)
        if all(now[place] - start[place] >= PIECES * PIECE_BYTES for place in places):
            return
    raise AssertionError(f"nothing went through {places}")


def test_connections_of_a_worker_survive_its_moves(lab):
    pipe = {"stdout": subprocess.PIPE}
    changes = ("cat", "/sys/class/net/eth0/carrier_changes")
    before = output(lab, "worker0", *changes)
    with lab.popen("server0", [sys.executable, "-c", ECHO], **pipe) as echo:
        assert echo.stdout.readline() == b"ready\n"
        # To the server's NIC at the ToR where the worker starts; it stays the same connection.
        command = [sys.executable, "-c", STREAM, "10.1.1.201"]
        with lab.popen("worker0", command, **pipe) as stream:
            try:
                for tor in (2, 3, 1, 2, 1):
                    lab.set("worker0:eth0", f"tor={tor}")
                    # The answers come through the server's NIC at this ToR, to the moved port.
                    wait_for_traffic(lab, stream, f"server0:eth{tor - 1}", f"tor{tor}:worker0")
            finally:
                stream.kill()
                echo.kill()
    assert output(lab, "worker0", *changes) == before
    assert "10.1.1.1/24" in output(lab, "worker0", "ip", "-brief", "address")


REFUSED = """
import errno, socket, sys
for address in sys.argv[1:]:
    found = socket.socket().connect_ex((address, 9))
    assert found == errno.ECONNREFUSED, (address, errno.errorcode.get(found))
"""


@pytest.mark.parametrize("tor", [1, 2, 3])
def test_everybody_reaches_everybody_wherever_a_worker_is(lab, tor):
    lab.set("worker0:eth0", f"tor={tor}")
    graph = lab.graph()
    addresses = [e.ip for link in topology.links(graph) for e in link.ends if e.address]
    for host in ("worker0", "worker1", "server1"):
        output(lab, host, sys.executable, "-c", REFUSED, *addresses)


def test_an_impossible_move_changes_nothing(lab):
    with pytest.raises(LabError, match="has tor1, tor2, tor3"):
        lab.set("worker1:eth0", "rate=50mbit", "tor=7")
    link = topology.find_link(lab.graph(), "worker1:eth0")
    assert (link.b.node, link.shape.rate_bps) == ("tor2", 100_000_000)


def test_a_run_takes_part_on_the_hosts_that_it_names(lab):
    command = ["bash", "-c", "echo $RANK $WORLD_SIZE $(hostname) $DMLCOMM_SOCKET_IFNAME"]
    options = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
    workers = lab.run(command, "--on", "worker*", **options)
    assert sorted(workers.stdout.splitlines()) == [
        f"[{rank}] {rank} 3 worker{rank} =eth0" for rank in range(3)
    ]
    servers = lab.run(command, "--on", "server1", **options)
    assert servers.stdout == "[0] 0 1 server1 =eth0,=eth1,=eth2\n"
    some = lab.run(command, "--on", "worker2,server1,worker[12]", **options)
    assert sorted(line.split()[-2] for line in some.stdout.splitlines()) == [
        *("server1", "worker1", "worker2")
    ]
    nobody = lab.run(command, "--on", "worker0,host*", **options)
    assert nobody.returncode == 1
    assert 'no host of psnet:2,3,3 is called "host*": there are server0 to worker2' in nobody.stderr


@pytest.mark.alone
def test_every_link_gives_its_rate_while_all_are_in_use(lab_is_possible):
    with Lab("psnet:2,4,2@1,3", rate="20mbit") as lab:
        lab.set("worker3:eth0", "tor=1")
        report = exact_report(lab.name)
    assert len(report["directions"]) == 16
    for direction in report["directions"]:
        assert direction["rate_bps"] == pytest.approx(20_000_000, rel=0.05), direction
