"""dmlcomm on hosts with several NICs: every operation, and cables that are pulled meanwhile."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from dmlcomm.lab import Lab, Options
from dmlcomm.topology.graph import ends_of, hosts
from helpers.lab_scripts import start_script
from helpers.multi_nic import (
    DEADLINE_S,
    ENOUGH_LOST,
    ENOUGH_LOST_AND_BACK,
    EVERY_OPERATION,
    REPETITIONS,
    SAME_ORDER,
    expect_fine,
    run,
    started,
    stopped,
    wait_for_loss,
)
from helpers.traces import expect_within, rows_and_operations

SEEDS = [1, 2]

BYTES_PER_NIC = """
tensor = torch.ones(2_000_000)
dist.all_reduce(tensor)
nics = [c for c in dmlcomm.rails() if c.interface != "local"]
say("sent", *[c.bytes_sent for c in nics])
"""

# The same once more, as a trace of each rank in FOLDER.
TRACE = """
with dmlcomm.trace_rails() as rails, torch.profiler.profile() as profiler:
    dist.all_reduce(tensor)
profiler.export_chrome_trace(f"{FOLDER}/{rank}.json")
rails.add_to(f"{FOLDER}/{rank}.json")
"""

CONTROLS = """
dist.all_reduce(torch.ones(100_000))
say("controls", *[c.congestion for c in dmlcomm.rails() if c.interface != "local"])
fine()
"""

# A row, a column, a grid of two by two, and two hosts that have no switch in common. Every rank
# says what its NICs have sent for each group.
PARTS = """
parts = {"row": [0, 1, 2], "column": [1, 4], "square": [0, 1, 3, 4], "diagonal": [2, 3]}
groups = {name: dist.new_group(ranks) for name, ranks in parts.items()}
for name, ranks in parts.items():
    if rank in ranks:
        tensor = torch.full((300_000,), float(rank))
        dist.all_reduce(tensor, group=groups[name])
        assert torch.equal(tensor, torch.full_like(tensor, sum(ranks))), name
        sent = {c.interface: c.bytes_sent for c in dmlcomm.rails(groups[name])}
        say(name, sent["eth0"], sent["eth1"])
fine()
"""

# The ranks of a row go on until one of them has lost a lane.
ROW = """
group = dist.new_group([0, 1, 2])
repetitions = 0
while rank < 3:
    tensor = torch.full((100_000,), 1.0)
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full_like(tensor, 3)), repetitions
    repetitions += 1
    lost = torch.tensor(sum(c.lanes_lost for c in dmlcomm.rails(group)))
    dist.all_reduce(lost, group=group)
    if rank == 0 and repetitions == 1:
        say("go")
    if lost > 0:
        break
dist.destroy_process_group()
if rank < 3:
    say("fine")
"""

LAST_RAIL = """
tensor = torch.ones(100_000)
begin = time.monotonic()
try:
    dist.all_reduce(tensor)
    if rank == 0:
        say("go")
    while time.monotonic() - begin < 40:
        dist.all_reduce(tensor)
        tensor.fill_(1)
except dmlcomm.PeerLostError as error:
    say("lost", error)
os._exit(0)
"""


KILLED = """
tensor = torch.ones(1_000_000)
begin = time.monotonic()
try:
    while True:
        dist.all_reduce(tensor)  # the first may end on a rank that dies before it ends on others
        if rank == size - 1:
            os.kill(os.getpid(), 9)
except dmlcomm.PeerLostError as error:
    say("lost after", time.monotonic() - begin, error)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("topology", "ranks_per_host"),
    [("bcube:2,2", 1), ("grid:3x2", 1), ("flat:3,2", 1), ("bcube:2,2", 2), ("flat:2,2", 2)],
)
def test_every_operation(lab_is_possible, topology, ranks_per_host):
    with Lab(topology) as lab:
        result = run(lab, EVERY_OPERATION + "fine()", "-m", str(ranks_per_host))
        num_hosts = {"bcube:2,2": 4, "grid:3x2": 6, "flat:3,2": 3, "flat:2,2": 2}[topology]
    expect_fine(result, num_hosts * ranks_per_host)


def sent_bytes(result):
    words = (line.split()[1:] for line in result.stdout.splitlines())
    return [[int(count) for count in rest] for first, *rest in words if first == "sent"]


@pytest.mark.parametrize("topology", ["bcube:2,2", "flat:3,2"])
def test_every_nic_carries_its_share_and_has_it_in_a_trace(lab_is_possible, topology, tmp_path):
    with Lab(topology, rate="500mbit") as lab:
        result = run(lab, f"FOLDER = {str(tmp_path)!r}" + BYTES_PER_NIC + TRACE + "fine()")
    counts = sent_bytes(result)
    assert len(counts) >= 3, result.stdout + result.stderr
    for first, second in counts:
        assert 0.7 < first / second < 1.4
    traced = {"out": [], "in": []}
    for rank in range(len(counts)):
        rows, (operation,) = rows_and_operations(str(tmp_path / f"{rank}.json"))
        assert operation["name"] == "dmlcomm:all_reduce"
        for way, all_bytes in traced.items():
            (first,), (second,) = (rows[f"{nic} {way}"] for nic in ("eth0", "eth1"))
            assert first["name"] == second["name"] == "all_reduce #2"
            expect_within(operation, [first, second])
            all_bytes.append((first["args"]["bytes"], second["args"]["bytes"]))
            assert 0.7 < all_bytes[-1][0] / all_bytes[-1][1] < 1.4, rows
    sums = {way: sum(map(sum, all_bytes)) for way, all_bytes in traced.items()}
    assert sums["out"] == sums["in"] >= 2 * (len(counts) - 1) * 4 * 2_000_000, traced


def test_nics_of_different_speed_are_both_full(lab_is_possible):
    with Lab("flat:3,2", rate="400mbit,100mbit") as lab:
        result = run(lab, BYTES_PER_NIC + "fine()")
    counts = sent_bytes(result)
    assert len(counts) == 3, result.stdout + result.stderr
    for fast, slow in counts:
        assert 2.5 < fast / slow < 6


# The lab leaves the choice: routes of others would carry one that overrides it.
@pytest.mark.parametrize("asked", ["reno", None])
def test_rails_have_the_congestion_control_that_was_asked_for_or_one_that_does_not_pace(
    lab_is_possible, asked
):
    environment = ("-e", f"DMLCOMM_TCP_CONGESTION={asked}") if asked else ()
    with Lab("flat:2,2", options=Options(congestion="")) as lab:
        result = run(lab, CONTROLS, *environment)
    expect_fine(result, 2)
    found = [line.split()[2:] for line in result.stdout.splitlines() if " controls " in line]
    assert len(found) == 2, result.stdout
    for first, second in found:
        assert first == second
        assert first == asked if asked else not first.startswith("bbr")


@pytest.mark.parametrize("asked", ["grid:3x2", "auto"])
def test_groups_that_are_a_part_of_a_grid_use_the_nics_between_their_hosts(lab_is_possible, asked):
    with Lab("grid:3x2", rate="500mbit") as lab:
        result = run(lab, PARTS, "-e", f"DMLCOMM_TOPOLOGY={asked}@500mbit")
    expect_fine(result, 6)
    sent = {name: [] for name in ("row", "column", "square", "diagonal")}
    for words in (line.split()[1:] for line in result.stdout.splitlines()):
        if words[0] in sent:
            sent[words[0]].append((int(words[1]), int(words[2])))
    assert {name: len(ranks) for name, ranks in sent.items()} == {
        "row": 3,
        "column": 2,
        "square": 4,
        "diagonal": 2,
    }
    assert all(first > 0 and second == 0 for first, second in sent["row"]), sent
    assert all(first == 0 and second > 0 for first, second in sent["column"]), sent
    assert all(0.7 < first / second < 1.4 for first, second in sent["square"]), sent


def test_a_row_of_a_grid_goes_on_through_other_hosts_when_a_cable_is_pulled(lab_is_possible):
    with Lab("grid:3x2", rate="500mbit") as lab:
        process = started(lab, ROW)
        lab.set("host1:eth0", "down")
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stdout + stderr
    assert stdout.count("fine") == 3, stdout + stderr
    assert "has lost its carrier" in stderr


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topology", ["bcube:2,2", "flat:3,2"])
def test_results_have_the_same_bits_while_links_flap(lab_is_possible, topology, seed):
    chance = random.Random(seed)
    with Lab(topology, rate="500mbit") as lab:
        process = started(lab, ENOUGH_LOST_AND_BACK + REPETITIONS, *SAME_ORDER)
        for _ in range(2):
            place = f"host{chance.randrange(3)}:eth{chance.randrange(2)}"
            time.sleep(chance.uniform(0.1, 0.6))  # the cable is pulled at any moment...
            lab.set(place, "down")
            time.sleep(chance.uniform(0.3, 1.5))  # ...and comes back at another
            lab.set(place, "up")
        lab.set(place, "down")
        wait_for_loss(process)  # if it had not noticed the others
        lab.set(place, "up")
        counts, stderr = stopped(process)
    assert all(count >= 5 for count in counts), counts
    assert "has lost its carrier" in stderr


def test_a_rail_that_loses_everything_without_losing_its_carrier(loss_is_possible):
    with Lab("flat:3,2", rate="500mbit") as lab:
        process = started(lab, ENOUGH_LOST + REPETITIONS, *SAME_ORDER)
        lab.set("host1:eth1", "loss=100%")
        _, stderr = stopped(process)
    assert "nothing was confirmed for" in stderr


# Rank 1 dies between the meeting of the ranks and the first operation.
DEAD_BEFORE = """
store = dist.distributed_c10d._get_default_store()
if rank == 1:
    store.set("rank 1 dies", b"now")
    os._exit(0)
store.wait(["rank 1 dies"])
try:
    dist.all_reduce(torch.ones(1000))
except dmlcomm.CommError as error:
    say(type(error).__name__)
end(size - 1)
"""

# The first operation, which makes the connections, begins when the test has sent SIGUSR1.
NO_WAY = """
import threading
told = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: told.set())
say("waits")
assert told.wait(60)
try:
    dist.all_reduce(torch.ones(1000))
except dmlcomm.CommError:
    say("failed")
os._exit(0)
"""


# Of 16 hosts, where 64 take half a minute: enough for a lab that writes neighbours down.
def test_many_hosts_reach_each_other_without_learning_addresses(lab_is_possible):
    with Lab("flat:16,2") as lab:
        table = lab.exec("host3", ["cat", "/proc/net/arp"], capture_output=True, text=True).stdout
        permanent = [line.split()[0] for line in table.splitlines() if " 0x6 " in line]
        assert sorted(permanent) == sorted(
            f"10.{rail}.0.{host + 1}" for rail in (0, 1) for host in range(16) if host != 3
        )
        result = run(lab, EVERY_OPERATION + "fine()")
    expect_fine(result, 16)


@pytest.mark.parametrize("spec", ["flat:2,2", "bcube:2,2"])
def test_a_rank_that_died_before_the_first_operation_is_lost(lab_is_possible, spec):
    with Lab(spec) as lab:
        ranks = len(hosts(lab.graph()))
        # Its port refuses: no need to wait for the peer's timeout, which is longer than the test's.
        process = start_script(lab, DEAD_BEFORE, "-e", "DMLCOMM_PEER_TIMEOUT_S=300")
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert {line.split()[0] for line in stdout.splitlines()} == {
        f"[{rank}]" for rank in range(ranks) if rank != 1
    }
    assert "PeerLostError" in stdout, stdout + stderr
    assert "TimeoutError" not in stdout, stdout + stderr


def test_a_rail_without_carrier_is_reported_once_while_the_others_are_tried(lab_is_possible):
    with Lab("flat:2,2") as lab:
        process = start_script(lab, NO_WAY, "-e", "DMLCOMM_PEER_TIMEOUT_S=3")
        assert {process.stdout.readline() for _ in range(2)} == {"[0] waits\n", "[1] waits\n"}
        lab.set("host0:eth0", "down")
        lab.set("host1:eth1", "down")
        os.kill(process.pid, signal.SIGUSR1)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert sorted(stdout.splitlines()) == ["[0] failed", "[1] failed"], stdout + stderr
    assert 1 <= stderr.count("no carrier; trying the other rails") <= 2, stderr


# What arrives at one end of a cable is lost, what leaves it arrives; the carrier stays.
DEAF = "from dmlcomm.lab import loss; loss.lose('eth1', 1.0)"

# What a routing daemon does at the other end: packets for host 1 go through host 2 instead.
REROUTE = """
import socket
from pyroute2 import IPRoute
with IPRoute() as ip:
    way = {"gateway": "10.0.1.1", "oif": socket.if_nametoindex("eth0")}
    ip.route("replace", dst="10.0.0.0/24", **way)
"""


@pytest.mark.parametrize(
    ("topology", "meanwhile"), [("flat:3,2", {}), ("bcube:2,2", {"host3": REROUTE})]
)
def test_results_have_the_same_bits_when_a_cable_carries_one_way_only(
    loss_is_possible, topology, meanwhile
):
    with Lab(topology, rate="500mbit") as lab:
        process = started(lab, ENOUGH_LOST + REPETITIONS, *SAME_ORDER)
        for host, script in {"host1": DEAF, **meanwhile}.items():
            lab.exec(host, [sys.executable, "-c", script], check=True)
        _, stderr = stopped(process)
    assert "nothing was confirmed for" in stderr
    assert "has lost its carrier" not in stderr


def test_an_only_cable_that_is_back_within_the_timeout_of_peers_ends_nothing(lab_is_possible):
    with Lab("flat:3,1", rate="500mbit") as lab:
        process = started(lab, ENOUGH_LOST_AND_BACK + REPETITIONS, *SAME_ORDER)
        lab.set("host1:eth0", "down")
        time.sleep(3)  # it is pulled for so long
        lab.set("host1:eth0", "up")
        _, stderr = stopped(process)
    assert "has lost its carrier" in stderr


# In turns, ranks reset connections to others, as a firewall does.
RESETS = f"""
import random
sys.path.insert(0, {str(Path(__file__).parent)!r})
from helpers.connections import reset_connections
num_reset = 0
for repetition in range(60):
    tensor = data(200_000, rank)
    work = dist.all_reduce(tensor, async_op=True)
    if repetition % 5 == 0 and repetition // 5 % size == rank:
        num_reset += reset_connections(os.getpid(), random.Random(repetition), DATA_ADDRESSES)
    work.wait()
    assert torch.equal(tensor, total(200_000)), repetition
counts = torch.tensor([num_reset, sum(c.lanes_lost for c in dmlcomm.rails())])
dist.all_reduce(counts)
assert 3 < counts[0] <= counts[1], counts
fine()
"""


@pytest.mark.parametrize("topology", ["flat:3,1", "flat:3,2"])
def test_connections_that_are_reset_are_made_again(lab_is_possible, topology):
    with Lab(topology, rate="500mbit") as lab:
        graph = lab.graph()
        addresses = {end.ip for host in hosts(graph) for end in ends_of(graph, host)}
        result = run(lab, f"DATA_ADDRESSES = {addresses}\n{RESETS}")
    expect_fine(result, 3)


def test_without_its_last_rail_a_peer_is_lost(lab_is_possible):
    with Lab("flat:3,2", rate="500mbit") as lab:
        process = started(lab, LAST_RAIL, "-e", "DMLCOMM_PEER_TIMEOUT_S=2")
        lab.set("host2:eth0", "down")
        lab.set("host2:eth1", "down")
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stdout + stderr
    lost = [line for line in stdout.splitlines() if " lost " in line]
    assert len(lost) == 3, stdout
    # Each of the two others names it; it names one of them.
    assert sum("rank 2 on host host2" in line for line in lost) >= 2, stdout


@pytest.mark.parametrize("topology", ["bcube:2,2", "flat:3,2"])
def test_a_killed_rank_is_noticed_over_several_rails_at_once(lab_is_possible, topology):
    with Lab(topology) as lab:
        result = run(lab, KILLED, "--linger", "20")
    lost = [line.split() for line in result.stdout.splitlines() if " lost after " in line]
    num_ranks = {"bcube:2,2": 4, "flat:3,2": 3}[topology]
    assert len(lost) == num_ranks - 1, result.stdout + result.stderr
    # Well before the 10 s after which a silent peer is given up.
    assert all(float(line[3]) < 9 for line in lost), lost
    assert all(f"rank {num_ranks - 1} on host" in " ".join(line) for line in lost), lost
