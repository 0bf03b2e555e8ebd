"""BCubes and grids whose hosts forward nothing: ranks relay for each other."""

import inspect
import json
import subprocess

import pytest
import torch.distributed as dist

from dmlcomm.lab import Lab, Options
from helpers.multi_nic import (
    CALLS_THAT_AGREE,
    ENOUGH_LOST,
    ENOUGH_LOST_AND_BACK,
    EVERY_OPERATION,
    OBJECTS,
    REPETITIONS,
    SAME_ORDER,
    expect_fine,
    run,
    started,
    stopped,
    wait_for_loss,
)

NEIGHBOURS_ONLY = Options(forwarding=False)

# Pairs that share no switch, in groups of their own: the relays are no members.
PAIRS = """
for first in range(size):
    last = size - 1 - first
    if first >= last:
        break
    group = dist.new_group([first, last])
    if rank in (first, last):
        tensor = torch.full((300_000,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full_like(tensor, size - 1)), (first, last)
        dist.barrier(group)
"""

# Groups of all ranks in another order, and pairs behind them.
OTHER_ORDER = """
everyone = dist.new_group(range(size)[::-1], sort_ranks=False)
assert dist.get_group_rank(everyone, rank) == size - 1 - rank
parts = [torch.empty(1000) for _ in range(size)]
dist.all_to_all(parts, [torch.full((1000,), float(rank))] * size, group=everyone)
assert [part[0] for part in parts] == list(range(size))[::-1]
"""

# A pair says "go" when both rails carry its bytes, and goes on until it has lost a lane, and the
# test has sent SIGUSR1.
PAIR_ONLY = """
pair = dist.new_group([0, size - 1])
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(True))
values = torch.rand(200_000, generator=torch.Generator().manual_seed(rank))
expected = None
repetitions = 0
has_said_go = False
while rank in (0, size - 1):
    tensor = values.clone()
    dist.all_reduce(tensor, group=pair)
    expected = tensor.clone() if expected is None else expected
    assert torch.equal(tensor.view(torch.int32), expected.view(torch.int32)), repetitions
    repetitions += 1
    rails = [rail for rail in dmlcomm.rails(pair) if rail.interface != "local"]
    unused = sum(rail.bytes_sent == 0 for rail in rails)
    state = torch.tensor([sum(rail.lanes_lost for rail in rails), len(stop), unused])
    dist.all_reduce(state, group=pair)
    lost, told, unused = state.tolist()
    if rank == 0 and unused == 0 and not has_said_go:
        say("go")
        has_said_go = True
    if lost > 0 and told > 0:
        break
if rank in (0, size - 1):
    say("repeated", repetitions)
fine()
"""

# The relay of a pair is gone, as GO says; the pair goes on through another host.
RELAY_GOES = """
pair = dist.new_group([0, size - 1])
store = dist.distributed_c10d._get_default_store()
is_in_pair = rank in (0, size - 1)
def exchange():
    tensor = torch.full((300_000,), float(rank))
    dist.all_reduce(tensor, group=pair)
    assert torch.equal(tensor, torch.full_like(tensor, size - 1))
def is_gone(process):
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "TZ"
    except (FileNotFoundError, ProcessLookupError):  # gone before open(), or before read()
        return True
def holds_for_both(is_true):
    holds = torch.tensor([float(is_true(dmlcomm.rails(pair)))])
    dist.all_reduce(holds, dist.ReduceOp.MIN, group=pair)
    return bool(holds.item())
def have_ways(rails):
    return all(rail.bytes_sent > 0 for rail in rails if rail.interface != "local")
if is_in_pair:
    exchange()
    while not holds_for_both(have_ways):  # one leads through the relay
        exchange()
meet("first", 2, comes=is_in_pair)
if rank == 1:
    store.set("relay", str(os.getpid()))
    GO()
relay = int(store.get("relay"))
if is_in_pair:
    while not is_gone(relay):
        time.sleep(0.01)
    # A pair may exchange for a while without the way that is gone.
    while not holds_for_both(lambda rails: any(rail.lanes_lost > 0 for rail in rails)):
        exchange()
    for _ in range(20):
        exchange()
meet("last", 2, comes=is_in_pair)
say("fine")
if rank == 0:
    COME_BACK(relay)
end(NUM_LEFT)
"""

LEAVE = """
dist.barrier()
dist.destroy_process_group()
say("fine")
"""

ENDS = """
NUM_LEFT = size - 1
def GO():
    os._exit(0)
def COME_BACK(_):
    pass
"""

STOPS = """
NUM_LEFT = size
def GO():
    os.kill(os.getpid(), signal.SIGSTOP)
def COME_BACK(relay):
    os.kill(relay, signal.SIGCONT)
"""

LEAVING = """
def sockets():
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")]
    return [name for name in names if name.startswith("socket:")]
pair = dist.new_group([0, size - 1])
if rank in (0, size - 1):
    dist.all_reduce(torch.ones(10), group=pair)
dist.barrier()
store = dist.distributed_c10d._get_default_store()
before = len(sockets())
dist.destroy_process_group()
assert len(sockets()) < before
say("fine")
"""


@pytest.mark.parametrize(
    ("topology", "ranks_per_host"),
    [("bcube:2,2", 1), ("bcube:3,2", 1), ("bcube:2,3", 1), ("bcube:2,2", 2)],
)
def test_every_operation_where_hosts_reach_neighbours_only(
    lab_is_possible, topology, ranks_per_host
):
    num_hosts = {"bcube:2,2": 4, "bcube:3,2": 9, "bcube:2,3": 8}[topology]
    with Lab(topology, options=NEIGHBOURS_ONLY) as lab:
        script = OBJECTS + PAIRS + EVERY_OPERATION + "fine()"
        result = run(lab, script, "-m", str(ranks_per_host))
    expect_fine(result, num_hosts * ranks_per_host)


@pytest.mark.skipif(
    "sort_ranks" not in inspect.signature(dist.new_group).parameters,
    reason="this torch sorts the ranks of every group",
)
def test_groups_of_all_ranks_in_another_order(lab_is_possible):
    with Lab("bcube:3,2", options=NEIGHBOURS_ONLY) as lab:
        result = run(lab, OTHER_ORDER + PAIRS + "fine()")
    expect_fine(result, 9)


# Kernels that drop what is not for them, though there are routes; and hosts that send everything
# unknown to a gateway.
SILENT = "sysctl -w net.ipv4.ip_forward=0"
DEFAULT_ROUTE = "ip route add default via 10.255.0.1 dev mgmt0"


@pytest.mark.parametrize("forwarding", [True, False])
def test_packets_that_nobody_forwards(lab_is_possible, forwarding):
    with Lab("bcube:2,2", options=Options(forwarding=forwarding)) as lab:
        for host in range(4):
            if forwarding:
                lab.exec(f"host{host}", SILENT.split(), check=True)
            elif host != 0:
                lab.exec(f"host{host}", DEFAULT_ROUTE.split(), check=True)
        result = run(lab, OBJECTS + PAIRS + EVERY_OPERATION + "fine()")
    expect_fine(result, 4)


@pytest.mark.parametrize("topology", ["bcube:2,2", "bcube:3,2"])
def test_results_have_the_same_bits_when_a_cable_is_pulled(lab_is_possible, topology):
    with Lab(topology, rate="500mbit", options=NEIGHBOURS_ONLY) as lab:
        process = started(lab, ENOUGH_LOST + REPETITIONS, *SAME_ORDER)
        lab.set("host1:eth0", "down")
        counts, stderr = stopped(process)
    assert all(count >= 2 for count in counts), counts
    assert "has lost its carrier" in stderr


@pytest.mark.parametrize("topology", ["flat:4,2", "bcube:3,2"])
def test_all_ranks_have_the_same_bits_when_a_cable_is_pulled_while_they_tune(
    lab_is_possible, topology
):
    with Lab(topology, rate="500mbit", options=NEIGHBOURS_ONLY) as lab:
        process = started(lab, CALLS_THAT_AGREE)
        lab.set("host1:eth0", "down")
        counts, stderr = stopped(process)
    assert all(count >= 20 for count in counts), counts
    assert "has lost its carrier" in stderr


def test_a_cable_comes_back(lab_is_possible):
    with Lab("bcube:2,2", rate="500mbit", options=NEIGHBOURS_ONLY) as lab:
        process = started(lab, ENOUGH_LOST_AND_BACK + REPETITIONS, *SAME_ORDER)
        lab.set("host2:eth1", "down")
        wait_for_loss(process)
        lab.set("host2:eth1", "up")
        stopped(process)


def test_every_operation_with_a_dead_cable(lab_is_possible):
    with Lab("bcube:3,2", options=NEIGHBOURS_ONLY) as lab:
        lab.set("host4:eth0", "down")
        result = run(lab, OBJECTS + PAIRS + EVERY_OPERATION + "fine()")
    expect_fine(result, 9)


def test_a_pair_without_common_switch_survives_a_cable_between_relays(lab_is_possible):
    with Lab("bcube:2,2", rate="500mbit", options=NEIGHBOURS_ONLY) as lab:
        process = started(lab, PAIR_ONLY)
        # Neither end of the pair sees this carrier go: the relay on host 1 has no way on.
        lab.set("host1:eth1", "down")
        counts, _ = stopped(process)
    assert len(counts) == 2


@pytest.mark.parametrize(
    ("how", "finished"), [(ENDS, (0, 2, 3)), (STOPS, (0, 1, 2, 3))], ids=["ended", "stopped"]
)
def test_a_pair_goes_on_through_another_host_when_its_relay_is_gone(lab_is_possible, how, finished):
    with Lab("bcube:2,2", options=NEIGHBOURS_ONLY) as lab:
        result = run(lab, how + RELAY_GOES)
    fine = [line for line in result.stdout.splitlines() if line.endswith("fine")]
    assert sorted(fine) == [f"[{rank}] fine" for rank in finished], result.stdout + result.stderr


def test_nothing_is_left_when_the_groups_are_destroyed(lab_is_possible):
    with Lab("bcube:2,2", options=NEIGHBOURS_ONLY) as lab:
        result = run(lab, LEAVING)
    expect_fine(result, 4)


# What rank 1 kills is found out by the others: those that reach it through relays are told that it
# refuses.
DEAD_BEFORE = """
store = dist.distributed_c10d._get_default_store()
if rank == 1:
    store.set("rank 1 dies", b"now")
    os._exit(0)
store.wait(["rank 1 dies"])
try:
    dist.recv(torch.ones(1000), 1)
except dmlcomm.CommError as error:
    say(type(error).__name__, error)
end(size - 1)
"""


def test_a_dead_rank_is_noticed_through_relays(lab_is_possible):
    with Lab("bcube:2,2", options=NEIGHBOURS_ONLY) as lab:
        result = run(lab, DEAD_BEFORE, "-e", "DMLCOMM_PEER_TIMEOUT_S=300", "--linger", "20")
    lost = [line for line in result.stdout.splitlines() if "PeerLostError" in line]
    assert len(lost) == 3, result.stdout + result.stderr


def gateway(lab, host, address):
    """Through which address the kernel of a host sends to another one."""
    command = ["ip", "-json", "route", "get", address]
    found = lab.exec(host, command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(found)[0]["gateway"]


def test_hosts_that_forward_need_no_relay_also_where_ways_there_and_back_differ(lab_is_possible):
    # Ranks leave in good order: one that just ends refuses, and is tried in all ways.
    script = OBJECTS + PAIRS + EVERY_OPERATION + LEAVE
    with Lab("bcube:2,2") as lab:
        # Between the NICs 0 of two hosts without a common switch: through host 2, back through 1.
        first, last = "10.0.0.1", "10.0.1.2"
        assert gateway(lab, "host0", last) == "10.1.0.2"
        assert gateway(lab, "host3", first) == "10.1.1.1"
        result = run(lab, script, "-e", "DMLCOMM_LOG_LEVEL=info")
    expect_fine(result, 4)
    assert "trying another way" not in result.stderr
