"""Results of a job on networks that are unkind, one after the other, while it runs."""

import os
import signal
from contextlib import nullcontext

import pytest

from dmlcomm.lab import Lab
from dmlcomm.topology.graph import hosts
from helpers.multi_nic import DEADLINE_S, started

# SIGUSR1 says that the network has changed. Values are whole numbers, whose sums are exact: every
# rank has the same bits, whatever algorithm ranks take meanwhile.
UNTIL_PHASE = """
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
def check():
    for count in (1000, 100_003, 400_000):
        tensor = data(count, rank)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, total(count)), (phase, count)
    parts = [torch.empty(70_001) for _ in range(size)]
    dist.all_gather(parts, data(70_001, rank))
    assert all(torch.equal(part, data(70_001, p)) for p, part in enumerate(parts)), phase
phase = 0
check()
if rank == 0:
    say("go")
while phase < LAST:
    check()
    noticed = torch.tensor(len(told))
    dist.all_reduce(noticed, op=dist.ReduceOp.MIN)
    if noticed.item() > phase:
        phase = int(noticed)
        for _ in range(3):
            check()
        if rank == 0:
            say("phase", phase)
fine()
"""


def set_all(lab, interface, change):
    """Changes a NIC of all hosts."""
    for host in hosts(lab.graph()):
        lab.set(f"{host}:{interface}", change)


# Each leads to a context, in which the network is so.
CONDITIONS = {
    "loss": lambda lab: nullcontext(set_all(lab, "eth0", "loss=1%")),
    "no loss": lambda lab: nullcontext(set_all(lab, "eth0", "loss=0%")),
    "slow in one direction": lambda lab: nullcontext(lab.set("host1:eth0", "out=20mbit")),
    "background traffic": lambda lab: lab.load("eth1", "50mbit"),
    "slower": lambda lab: nullcontext(set_all(lab, "eth1", "rate=25mbit")),
    "faster": lambda lab: nullcontext(set_all(lab, "eth1", "rate=100mbit")),
}


@pytest.mark.usefixtures("loss_is_possible")
def test_ranks_have_the_same_results_while_the_network_is_unkind():
    # NICs of 25:10:10:1, large and small packets, hosts of both kinds at one switch.
    with Lab("flat:3,4", rate="250mbit,100mbit,100mbit,10mbit") as lab:
        set_all(lab, "eth1", "mtu=1500")
        lab.set("host2:eth2", "mtu=1500")
        script = f"LAST = {len(CONDITIONS)}\n{UNTIL_PHASE}"
        process = started(lab, script, "-e", "DMLCOMM_TOPOLOGY=flat")
        for phase, (name, condition) in enumerate(CONDITIONS.items(), 1):
            with condition(lab):
                os.kill(process.pid, signal.SIGUSR1)
                assert process.stdout.readline() == f"[0] phase {phase}\n", name
        # Not communicate(): lines that came with the last one are in the buffer of readline().
        stdout, stderr = process.stdout.read(), process.stderr.read()
        process.wait(DEADLINE_S)
    assert process.returncode == 0, stdout + stderr
    assert stdout.count("fine") == 3, stdout + stderr
