"""Two NICs of every host in one subnet, at one network: each carries its share."""

import ipaddress
import sys

import pytest

from dmlcomm.lab import Lab
from dmlcomm.topology.graph import End, add_host, add_link, add_switch, new_graph
from dmlcomm.topology.shape import Shape, parse_link_rate
from helpers.lab_scripts import SETUP
from helpers.warm_python import warm_command

pytestmark = pytest.mark.alone

DEADLINE_S = 60
RANKS = 2

# The third host is a cable between the two switches: its cards forward for each other.
JOIN = """
from pyroute2 import IPRoute
with IPRoute() as ip:
    ip.link("add", ifname="joint", kind="bridge")
    joint = ip.link_lookup(ifname="joint")[0]
    for name in ("eth0", "eth1"):
        ip.link("set", index=ip.link_lookup(ifname=name)[0], master=joint)
    ip.link("set", index=joint, state="up")
"""

# As kernels are, and as labs are not.
ANSWER_FOR_ANY_ADDRESS = """
for parameter in ("arp_ignore", "arp_announce"):
    with open(f"/proc/sys/net/ipv4/conf/all/{parameter}", "w") as file:
        file.write("0")
"""

# What the kernel says that the cards have sent, not what dmlcomm believes.
BYTES_BY_KERNEL = """
for _ in range(3):
    tensor = torch.arange(1_000_000, dtype=torch.float32) % 97 + rank
    dist.all_reduce(tensor)
    assert torch.equal(tensor, size * (torch.arange(1_000_000) % 97).float() + 1)
with open("/proc/net/dev") as file:
    columns = {name: words.split() for name, _, words in (l.partition(":") for l in file)}
sent = {name.strip(): int(words[8]) for name, words in columns.items() if len(words) > 8}
say("sent", sent["eth0"], sent["eth1"])
end()
"""


def one_subnet():
    """Two hosts with two cards each, and one that joins the switches of the cards."""
    graph = new_graph("flat:3,2")
    network = ipaddress.ip_network("10.0.0.0/24")
    shape = Shape(parse_link_rate("500mbit"), 0, 0)
    for _ in range(RANKS + 1):
        add_host(graph)
    for card in range(2):
        switch = add_switch(graph, f"switch{card}.0")
        for host in range(RANKS + 1):
            address = f"{network[1 + host + 10 * card]}/{network.prefixlen}"
            end = End(f"host{host}", f"eth{card}", address)
            add_link(graph, end, End(switch, f"port{host}", None), card, shape)
    return graph


def run_ranks(lab):
    """Bytes that each rank's two cards have sent, and what the ranks wrote to stderr."""
    master = lab.graph().nodes["host0"]["management"].partition("/")[0]
    processes = []
    for rank in range(RANKS):
        variables = {
            "RANK": rank,
            "WORLD_SIZE": RANKS,
            "MASTER_ADDR": master,
            "MASTER_PORT": 29_400,
            "DMLCOMM_SOCKET_IFNAME": "=eth0,=eth1",
            "DMLCOMM_TOPOLOGY": "flat",
        }
        command = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command += warm_command(SETUP + BYTES_BY_KERNEL)
        processes.append(lab.popen(f"host{rank}", command, stdout=-1, stderr=-1, text=True))
    results = [process.communicate(timeout=DEADLINE_S) for process in processes]
    errors = "".join(stderr for _, stderr in results)
    assert all(process.returncode == 0 for process in processes), errors
    return [tuple(map(int, stdout.split()[1:])) for stdout, _ in results], errors


def on_hosts(lab, hosts, script):
    for host in hosts:
        lab.exec(f"host{host}", [sys.executable, "-c", script], check=True, timeout=DEADLINE_S)


@pytest.fixture
def joined_lab(lab_is_possible):
    with Lab(one_subnet()) as lab:
        on_hosts(lab, [RANKS], JOIN)
        yield lab


def test_both_cards_carry_where_each_answers_for_itself(joined_lab):
    sent, errors = run_ranks(joined_lab)
    assert all(0.6 < first / second < 1.7 for first, second in sent), sent
    assert "in one subnet" not in errors


def test_a_host_that_is_not_set_up_for_it_works_and_says_what_to_set(joined_lab):
    on_hosts(joined_lab, range(RANKS), ANSWER_FOR_ANY_ADDRESS)
    _, errors = run_ranks(joined_lab)
    assert "eth0, eth1 are in one subnet" in errors
    assert "arp_ignore is 0" in errors
