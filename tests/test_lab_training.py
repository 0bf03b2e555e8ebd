"""dmlcomm between the hosts of a lab: collectives, and what happens when the network fails."""

import os
import signal

import pytest

from dmlcomm.lab import Lab
from dmlcomm.lab.client import Client
from dmlcomm.lab.sampling import measure
from helpers.lab_scripts import SETUP, run_script, start_script

pytestmark = pytest.mark.xdist_group("lab_training")

DEADLINE_S = 60

TOTAL = """
def total(count):
    tensor = torch.arange(count, dtype=torch.float32) % 7 + rank
    dist.all_reduce(tensor)
    expected = size * (torch.arange(count) % 7) + size * (size - 1) // 2
    assert torch.equal(tensor, expected.float())
"""

COLLECTIVES = """
for count in (1, 1000, 300_000):
    total(count)
for root in range(size):
    tensor = torch.full([5000], float(rank))
    dist.broadcast(tensor, root)
    assert (tensor == root).all()
parts = [torch.empty(3) for _ in range(size)]
dist.all_gather(parts, torch.full([3], float(rank)))
assert [part[0].item() for part in parts] == list(range(size))
dist.barrier()
dist.destroy_process_group()
say("fine")
"""


@pytest.fixture(scope="module")
def flat_lab(lab_is_possible):
    with Lab("flat:3,1", rate="500mbit") as lab:
        yield lab


def run(lab, script, *arguments):
    return run_script(lab, TOTAL + script, *arguments, deadline_s=DEADLINE_S)


def fine(num_ranks):
    return [f"[{rank}] fine" for rank in range(num_ranks)]


def test_collectives_between_hosts(flat_lab):
    result = run(flat_lab, COLLECTIVES)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == fine(3)


def test_collectives_over_several_routed_switches(lab_is_possible):
    with Lab("fattree:4,r=2,hosts=5", rate="500mbit") as lab:
        result = run(lab, COLLECTIVES)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == fine(5)


def test_torchrun_on_every_host(flat_lab, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SETUP + TOTAL + COLLECTIVES)
    options = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
    result = flat_lab.run([str(script)], "--torchrun", **options)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[host{host}] fine" for host in range(3)]


def test_collectives_survive_loss(flat_lab, loss_is_possible):
    flat_lab.set("host1:eth0", "loss=1%")
    try:
        result = run(flat_lab, COLLECTIVES)
    finally:
        flat_lab.set("host1:eth0", "loss=0%")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == fine(3)


# Some 4 s of the link: all sends have ended long before, as their messages are copied.
LEAVES_AT_ONCE = """
if rank == 1:
    for number in range(80):
        dist.send(torch.full((15_000,), float(number)), 0)
    END()
elif rank == 0:
    for number in range(80):
        message = torch.empty(15_000)
        dist.recv(message, 1)
        assert torch.equal(message, torch.full_like(message, number)), number
say("fine")
"""


@pytest.mark.parametrize("end", ["dist.destroy_process_group", "sys.exit"])
def test_a_rank_that_ends_at_once_loses_nothing_of_what_it_has_sent(lab_is_possible, end):
    with Lab("flat:2,1", rate="10mbit") as lab:
        result = run(lab, LEAVES_AT_ONCE.replace("END", end))
    assert result.returncode == 0, result.stderr
    assert "[0] fine" in result.stdout.splitlines()


# Rank 1 has all that it waits for long before the others.
LEAVES_EARLY = """
sizes = torch.full((3, 3), 1000)
sizes[0, 2] = sizes[2, 0] = 3_000_000
received = torch.empty(int(sizes[:, rank].sum()))
sent = torch.full((int(sizes[rank].sum()),), float(rank))
dist.all_to_all_single(received, sent, sizes[:, rank].tolist(), sizes[rank].tolist())
expected = [torch.full((int(sizes[p, rank]),), float(p)) for p in range(size)]
assert torch.equal(received, torch.cat(expected))
say("fine")
"""


def test_a_rank_that_leaves_in_good_order_ends_nothing_that_needs_it_no_more(flat_lab):
    result = run(flat_lab, LEAVES_EARLY)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == fine(3)


def test_a_wrong_interface_name_is_an_error_that_names_it(flat_lab):
    result = run(flat_lab, COLLECTIVES, "-e", "DMLCOMM_SOCKET_IFNAME==eth7", "--linger", "10")
    assert result.returncode == 1
    assert 'DMLCOMM_SOCKET_IFNAME="=eth7" chooses no interface of this host' in result.stderr


# Goes on until the test sends SIGUSR1, or a peer is lost.
PAUSED = """
total(1000)
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
say("begun")
try:
    while True:
        total(50_000)
        flag = torch.tensor([len(stop)])
        dist.all_reduce(flag)
        if flag.item():
            break
except dmlcomm.CommError as error:
    say(type(error).__name__, str(error).replace("\\n", " "))
    sys.exit(3)
dist.destroy_process_group()
say("fine")
"""


class Job:
    """A run that goes on until it is told to end, or fails."""

    def __init__(self, lab, *arguments):
        self.process = start_script(lab, TOTAL + PAUSED, *arguments)

    def __enter__(self):
        assert sorted(self.process.stdout.readline() for _ in range(3)) == [
            f"[{rank}] begun\n" for rank in range(3)
        ]
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def end(self):
        return self.process.communicate(timeout=DEADLINE_S)


def wait_until_silent(lab, place):
    """Until nothing has crossed the link for a while: the job has noticed."""
    with Client(lab.name) as client:
        rate = 1.0
        while rate:
            traffic = {str(entry.link.a): entry for entry in measure(client, interval_s=0.3)}
            rate = sum(direction.rate_bps for direction in traffic[place].directions)


def test_a_cable_that_is_pulled_and_put_back_is_survived(flat_lab):
    with Job(flat_lab) as job:
        flat_lab.set("host2:eth0", "down")
        wait_until_silent(flat_lab, "host2:eth0")
        flat_lab.set("host2:eth0", "up")
        os.kill(job.process.pid, signal.SIGUSR1)
        output, errors = job.end()
    assert job.process.returncode == 0, errors
    assert sorted(output.splitlines()) == fine(3)


def test_every_rank_names_the_peer_when_a_host_is_cut_off(flat_lab):
    arguments = ("-e", "DMLCOMM_PEER_TIMEOUT_S=3", "--linger", "15")
    try:
        with Job(flat_lab, *arguments) as job:
            flat_lab.set("host2:eth0", "down")
            output, errors = job.end()
    finally:
        flat_lab.set("host2:eth0", "up")
    assert job.process.returncode == 3, output + errors
    by_rank = dict(line.split(" ", 1) for line in output.splitlines())
    assert sorted(by_rank) == ["[0]", "[1]", "[2]"]
    for message in by_rank.values():
        assert message.startswith("PeerLostError"), message
    assert "rank 2" in by_rank["[0]"]
    assert "rank 2" in by_rank["[1]"]
