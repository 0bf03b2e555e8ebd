"""Ranks that learn the rates of their NICs, and agree on what they choose by them."""

import pytest

from dmlcomm.lab import Lab
from dmlcomm.topology.graph import hosts
from helpers.lab_scripts import SETUP, run_script
from helpers.multi_nic import DEADLINE_S, VALUES, started
from helpers.warm_python import warm_command

# NICs of a lab claim 10 Gb/s, and the topology here names no rates.
NO_RATES = ("-e", "DMLCOMM_TOPOLOGY=flat", "-e", "DMLCOMM_LOG_LEVEL=info")

SAY_RATES = """
say("rates", *[round(c.bits_per_second) for c in dmlcomm.rails() if c.interface != "local"])
"""

# Sizes change, and other operations come in between, several at a time, so that reports and choices
# meet in every order. Ranks that chose differently would fail.
MIXED = """
import random
order = random.Random(7)  # the same on all ranks
for round in range(12):
    works, checks = [], []
    for _ in range(order.randrange(1, 6)):
        count = order.choice([5, 3_000, 70_001, 300_000])
        kind = order.choice(["all_reduce", "all_reduce", "broadcast", "all_gather", "gather"])
        tensor = data(count, rank)
        if kind == "all_reduce":
            works.append(dist.all_reduce(tensor, async_op=True))
            checks.append((tensor, total(count)))
        elif kind == "broadcast":
            works.append(dist.broadcast(tensor, 1, async_op=True))
            checks.append((tensor, data(count, 1)))
        elif kind == "all_gather":
            parts = [torch.empty(count) for _ in range(size)]
            works.append(dist.all_gather(parts, tensor, async_op=True))
            checks += [(part, data(count, p)) for p, part in enumerate(parts)]
        else:
            parts = [torch.empty(count) for _ in range(size)] if rank == 2 else None
            works.append(dist.gather(tensor, parts, dst=2, async_op=True))
            checks += [(part, data(count, p)) for p, part in enumerate(parts or [])]
    if rank == round % size:
        time.sleep(0.01)  # late
    for work in works:
        work.wait()
    for got, expected in checks:
        assert torch.equal(got, expected), round
"""

LARGE = """
for _ in range(8):
    tensor = data(400_000, rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(400_000))
"""


WITH_TICKETS = """
for _ in range(12):
    tensor = data(400_000, rank)
    with dmlcomm.ticket(0):
        dist.all_reduce(tensor)
    assert torch.equal(tensor, total(400_000))
"""

UNTIL_SLOWER_AND_BACK = """
phase = -1
while phase < 2:
    tensor = data(400_000, rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(400_000))
    slowest = torch.tensor([c.bits_per_second for c in dmlcomm.rails() if c.interface == "eth0"])
    dist.all_reduce(slowest, op=dist.ReduceOp.MIN)
    if phase == -1 and slowest.item() > 80e6:
        phase = 0
        if rank == 0:
            say("go")
    elif phase == 0 and slowest.item() < 75e6:
        phase = 1
        if rank == 0:
            say("slower")
    elif phase == 1 and slowest.item() > 80e6:
        phase = 2
fine()
"""


@pytest.fixture(scope="module")
def lab():
    with Lab("flat:3,2", rate="200mbit,50mbit") as lab:
        yield lab


def run(lab, script, *arguments):
    completed = run_script(lab, VALUES + script + "fine()", *arguments, deadline_s=DEADLINE_S)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("fine") == len(hosts(lab.graph()))
    return completed


def test_rates_are_measured_where_drivers_are_wrong(lab):
    completed = run(lab, LARGE + SAY_RATES, *NO_RATES)
    assert "rates: 10000 Mb/s, 10000 Mb/s" in completed.stderr
    assert "algorithms are chosen anew" in completed.stderr
    for line in completed.stdout.splitlines():
        if "rates" in line:
            fast, slow = map(int, line.split()[-2:])
            assert slow < 75e6
            assert slow < fast < 300e6


def test_rates_are_learned_also_where_all_operations_have_tickets(lab):
    completed = run(lab, WITH_TICKETS, *NO_RATES)
    assert "algorithms are chosen anew" in completed.stderr


def test_a_rate_that_changes_is_noticed_and_so_is_its_return(lab):
    process = started(lab, UNTIL_SLOWER_AND_BACK, *NO_RATES)
    places = [f"{host}:eth0" for host in hosts(lab.graph())]
    for place in places:
        lab.set(place, "rate=50mbit")
    assert process.stdout.readline() == "[0] slower\n"
    for place in places:
        lab.set(place, "rate=200mbit")
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    assert out.count("fine") == len(places)


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_ranks_choose_alike_whatever_runs_at_once(lab, ranks_per_host):
    script = VALUES + MIXED + "fine()"
    arguments = (*NO_RATES, "-m", str(ranks_per_host))
    completed = run_script(lab, script, *arguments, deadline_s=DEADLINE_S)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("fine") == len(hosts(lab.graph())) * ranks_per_host


def test_one_rank_that_does_not_tune_keeps_all_choices(lab):
    off = 'import os\nif os.environ["RANK"] == "1": os.environ["DMLCOMM_AUTOTUNE"] = "0"\n'
    command = warm_command(off + SETUP + VALUES + LARGE + "fine()")
    options = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
    completed = lab.run(command, *NO_RATES, **options)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("fine") == len(hosts(lab.graph()))
    assert "a rank has DMLCOMM_AUTOTUNE=0" in completed.stderr
    assert "chosen anew" not in completed.stderr
