"""Tickets: how they are given, and that no order which they make hangs or changes a result."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from dmlcomm import prio
from dmlcomm.lab import Lab
from helpers import eventually, run_ranks
from helpers.inspecting import group_of
from helpers.lab_hosts import management_address, on_host
from helpers.lab_scripts import run_script
from helpers.parameter_servers import ServerProcess, WorkerProcess
from helpers.waiting import thread_state
from helpers.warm_python import warm_command
from soak.tickets import run_random_tickets, run_random_tickets_in_lab

NUM_OPERATIONS = 500
NUM_IN_LAB = 150
DEADLINE_S = 60


def test_blocks_are_nested_and_count_for_their_thread():
    others = []
    assert prio.current_ticket() == 128
    with dmlcomm.ticket(7):
        with dmlcomm.ticket(0):
            assert prio.current_ticket() == 0
            thread = threading.Thread(target=lambda: others.append(prio.current_ticket()))
            thread.start()
            thread.join()
        assert prio.current_ticket() == 7
        with pytest.raises(ZeroDivisionError), dmlcomm.ticket(255):
            1 / 0  # noqa: B018
        assert prio.current_ticket() == 7
    assert prio.current_ticket() == 128
    assert others == [128]


@pytest.mark.parametrize(
    ("number", "error"),
    [(256, ValueError), (-1, ValueError), (1.0, TypeError), ("1", TypeError), (True, TypeError)],
)
def test_what_is_no_ticket_is_refused(number, error):
    with pytest.raises(error, match="expected a ticket from 0"):
        dmlcomm.ticket(number)
    assert prio.current_ticket() == 128


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_random_tickets_on_each_rank(world_size, transport):
    run_random_tickets(
        world_size, transport, NUM_OPERATIONS, seed=world_size, deadline_s=DEADLINE_S
    )


def _order_of_ends(rank, n):
    """Rank 1 stops with all of its calls made, so nothing ends before rank 0 has made its own."""
    store = dist.distributed_c10d._get_default_store()
    for _ in range(40):  # by then all ranks know that there are tickets
        with dmlcomm.ticket(5):
            dist.all_reduce(torch.ones(10))
    if rank == 0:
        peer = int(store.get("peer"))
        threads = Path(f"/proc/{peer}/task")
        eventually(lambda: all(thread_state(t) == "T" for t in threads.iterdir()), "rank 1 stops")
    ended = []
    marks = []
    sizes = {"first": 2_000_000, "second": 2_000_000, "third": 2_000_000, "urgent": 100_000}
    for name, size in sizes.items():
        with dmlcomm.ticket(0 if name == "urgent" else 128):
            work = dist.all_reduce(torch.ones(size), async_op=True)
        marks.append(work.get_future().then(lambda _, name=name: ended.append(name)))
    if rank == 0:
        os.kill(peer, signal.SIGCONT)
    else:
        store.set("peer", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    for mark in marks:
        mark.wait()
    return ended


def test_the_urgent_one_of_several_collectives_ends_first():
    """Through memory, callbacks would be too slow to tell: see EngineTicketTest."""
    env = {"DMLCOMM_TRANSPORT": "tcp", "DMLCOMM_PEER_TIMEOUT_S": "30"}
    for ended in run_ranks(_order_of_ends, 2, env=env):
        assert ended[0] == "urgent"
        assert len(ended) == 4


def _urgent_waits(rank, n):
    def waits():
        own = group_of(rank, lambda: {os.getpid()})
        (rail,) = [rail for rail in own["rails"] if rail["bytes_sent"] > 0]
        return rail

    for ticket in (128, 5, 255, 127):
        with dmlcomm.ticket(ticket):
            dist.all_reduce(torch.ones(300_000))
    collectives = waits()
    with dmlcomm.ticket(3):
        dist.send(torch.ones(10), 1) if rank == 0 else dist.recv(torch.ones(10), 0)
    return [collectives, waits()]


def test_waits_of_urgent_operations_that_send_are_told():
    results = run_ranks(_urgent_waits, 2, env={"DMLCOMM_TRANSPORT": "tcp"})
    for rank, (collectives, all_of_them) in enumerate(results):
        assert collectives["urgent_waits"] == 2
        assert collectives["longest_urgent_wait_us"] <= collectives["urgent_wait_us"]
        assert all_of_them["urgent_waits"] == (3 if rank == 0 else 2)


@pytest.mark.usefixtures("lab_is_possible")
def test_ranks_that_begin_to_give_tickets_in_the_middle():
    """Half of the ranks do, from operation 40 on: all learn it at the same operation."""
    first_ticket = f"40 if rank % 2 == 0 else {NUM_IN_LAB}"
    run_random_tickets_in_lab("flat:3,1", NUM_IN_LAB, 1, DEADLINE_S, first_ticket)


_CONNECTIONS = """
import psutil, socket
from torch.distributed import _functional_collectives as functional
address = psutil.net_if_addrs()["eth0"][0].address
def connections():
    found = psutil.Process().net_connections("tcp")
    return {c.laddr + c.raddr: c.fd for c in found
            if c.laddr and c.laddr[0] == address and c.status == "ESTABLISHED"}
def reduce(ticket, is_functional=False):
    tensor = torch.full((300_000,), rank + 1.0)
    with dmlcomm.ticket(ticket):
        if is_functional:
            tensor = functional.all_reduce(tensor, "sum", dist.group.WORLD).wait()
        else:
            dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full_like(tensor, 3.0)), tensor
def reduce_until(ticket, count, is_functional=False):
    # On both ranks, which the deadline of the test ends.
    found = None
    while found != [count, -count]:
        reduce(ticket, is_functional)
        number = len(connections())
        most = torch.tensor([number, -number])
        dist.all_reduce(most, dist.ReduceOp.MAX)
        found = most.tolist()
"""

_CLASSES = """
for ticket in (128, 255, 128):
    reduce(ticket)
usual = connections()
assert len(usual) == 1, usual
dist.barrier()
reduce_until(0, 2)
reduce_until(1, 3, is_functional=True)
reduce_until(2, 4)
reduce_until(127, 4)
# They are cut, and made again.
dist.barrier()
if rank == 0:
    for name, number in connections().items():
        if name not in usual:
            connection = socket.socket(fileno=os.dup(number))
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
for ticket in (0, 1, 2, 128):
    reduce(ticket)
reduce_until(0, 4)
assert usual.keys() <= connections().keys()
assert dmlcomm.rails()[0].lanes_lost >= 3
say("fine")
end()
"""

_NONE = """
for ticket in (0, 1, 2, 128, 0):
    reduce(ticket)
    dist.barrier()
assert len(connections()) == 1
say("fine")
end()
"""

# Sends of small messages end once they are copied. A connection with little credit takes the rest
# of them later, while their rank calls nothing. If that had to wait for ticks, four a second, it
# would take minutes.
_LEFT_FRAMES = """
dist.barrier()
tensors = [torch.full((15_000,), float(i)) for i in range(200)]
received = torch.empty(15_000)
for burst in range(30):
    if rank == 0:
        for work in [dist.isend(tensor, 1) for tensor in tensors]:
            work.wait()
    meet(f"sent {burst}")
    if rank == 1:
        for tensor in tensors:
            dist.recv(received, 0)
            assert torch.equal(received, tensor)
    meet(f"received {burst}")
say("fine")
end()
"""


@pytest.mark.usefixtures("lab_is_possible")
def test_urgent_operations_have_connections_of_their_own():
    with Lab("flat:2,1") as lab:
        found = run_script(lab, _CONNECTIONS + _CLASSES, deadline_s=DEADLINE_S)
        assert found.stdout.count("fine") == 2, found.stderr
        option = ("-e", "DMLCOMM_TICKET_CONNECTIONS=0")
        found = run_script(lab, _CONNECTIONS + _NONE, *option, deadline_s=DEADLINE_S)
        assert found.stdout.count("fine") == 2, found.stderr
        option = ("-e", "DMLCOMM_CREDIT_BYTES=16384")
        found = run_script(lab, _LEFT_FRAMES, *option, deadline_s=DEADLINE_S)
        assert found.stdout.count("fine") == 2, found.stderr


# Inside a host there are no such connections, so numbers may differ.
_DIFFERENT_NUMBERS = """
import os
rank = int(os.environ["RANK"])
os.environ["DMLCOMM_TICKET_CONNECTIONS"] = "0" if rank == 1 else "3"
import torch, torch.distributed as dist, dmlcomm
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store = dist.TCPStore(*master, is_master=rank == 0)
host, place = divmod(rank, 2)
own = dist.PrefixStore(f"host {host}", store)
dist.init_process_group("dmlcomm", store=own, rank=place, world_size=2)
tensor = torch.ones(10)
with dmlcomm.ticket(0):
    dist.all_reduce(tensor)
assert torch.equal(tensor, torch.full_like(tensor, 2.0))
dist.destroy_process_group()
try:
    everyone = dist.PrefixStore("everyone", store)
    dist.init_process_group("dmlcomm", store=everyone, rank=rank, world_size=4)
except dmlcomm.CommError as error:
    print("told:", error, flush=True)
if store.add("told", 1) == 4:
    store.set("all told", "")
store.wait(["all told"])
"""

_WORKER = """
import sys
from dmlcomm import PsRefusedError
from dmlcomm.ps import Client
try:
    with Client(sys.argv[1], worker=0):
        print("let in", flush=True)
except PsRefusedError as error:
    print("refused:", error, flush=True)
"""


@pytest.mark.usefixtures("lab_is_possible")
def test_ranks_and_workers_with_different_numbers_of_connections_are_told_so():
    """All ranks, also those that have the number of all other hosts."""
    with Lab("flat:2,1") as lab:
        options = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
        found = lab.run(warm_command(_DIFFERENT_NUMBERS), "--ranks-per-host", "2", **options)
        differs = "DMLCOMM_TICKET_CONNECTIONS differs: rank 0 on host host0 has 3, and rank 1 on"
        assert found.stdout.count(f"{differs} host host0 0; set it alike") == 4, found
        arguments = ("--listen", f"{management_address(lab, 'host0')}:0", "--insecure")
        with ServerProcess(*arguments, **on_host(lab, "host0")) as server:
            told = r"DMLCOMM_TICKET_CONNECTIONS differs: rank 0 on host host1 has 0, and rank 1 on"
            refused = rf"refused: server 0 .*{told} host host0 3; set it alike"
            for number, answer in ("0", refused), ("3", "let in"):
                environment = on_host(lab, "host1", DMLCOMM_TICKET_CONNECTIONS=number)
                with WorkerProcess(_WORKER, server.address, **environment) as worker:
                    assert re.match(answer, worker.next_line())


CREDIT = 1_000_000
# What TCP may have on its way besides: some 0.5 MB here. Twice the credits would still be too much.
MOST_IN_FLIGHT = 1_900_000
_LONGEST_WAIT = """
received = torch.empty(size * 500_000)
for _ in range(3):
    dist.all_to_all_single(received, torch.ones(size * 500_000))
(rail,) = [rail for rail in dmlcomm.rails() if rail.interface == "eth0"]
say("held", rail.blocking_us * rail.bits_per_second / 8e6)
end()
"""


@pytest.mark.usefixtures("lab_is_possible")
def test_the_longest_wait_is_what_all_connections_hold_at_the_rate_of_the_rail():
    """A part and the kernel's queue of each connection are a credit at most."""
    with Lab("flat:3,1", rate="100mbit") as lab:
        option = ("-e", f"DMLCOMM_CREDIT_BYTES={CREDIT}")
        found = run_script(lab, _LONGEST_WAIT, *option, deadline_s=DEADLINE_S)
    held = [float(line.split()[-1]) for line in found.stdout.splitlines() if "held" in line]
    assert len(held) == 3, found.stderr
    for num_bytes in held:
        assert num_bytes == pytest.approx(round(num_bytes), abs=1e-3)  # it is whole bytes
        assert 2 * 2 * CREDIT < num_bytes < 2 * (2 * CREDIT + MOST_IN_FLIGHT)
