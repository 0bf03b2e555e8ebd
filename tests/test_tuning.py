"""Ranks that learn the rates of their NICs, and agree on what they choose by them."""

import os
import re
import signal

import psutil
import pytest

from dmlcomm.lab import Lab, Options
from dmlcomm.topology.graph import hosts
from helpers.inspecting import group_of
from helpers.lab_scripts import SETUP, run_script, start_script
from helpers.multi_nic import DEADLINE_S, VALUES
from helpers.warm_python import warm_command

# NICs of a lab claim 10 Gb/s, and the topology here names no rates. In Mb/s:
SHAPERS = (200, 50)
NO_RATES = ("-e", "DMLCOMM_TOPOLOGY=flat", "-e", "DMLCOMM_LOG_LEVEL=info")

NO_RATES_OF_GRID = ("-e", "DMLCOMM_TOPOLOGY=grid:3x2", *NO_RATES[2:])

# It does not name all_gather and barrier.
PLAN_OF_GRID = """
plan: 1
hosts: 6
ranks_per_host: 1
grid: [3, 2]
algorithms:
  all_reduce: {0: bml}
"""

SAY_RATES = """
rails = [c for c in dmlcomm.rails() if c.interface != "local"]
say("rates", *[round(c.bits_per_second / 1e6) for c in rails])
"""

# By which algorithms are chosen, in Mb/s.
SAY_RATES_IN_USE = """
rails = [c for c in dmlcomm.rails() if c.interface != "local"]
say("in use", *[round(c.agreed_bits_per_second / 1e6) for c in rails])
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
    tensor = data(800_000, rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(800_000))
"""

LARGE_GATHERS = """
for _ in range(12):
    parts = [torch.empty(100_000) for _ in range(size)]
    dist.all_gather(parts, data(100_000, rank))
    assert all(torch.equal(part, data(100_000, p)) for p, part in enumerate(parts))
    dist.barrier()
"""

WITH_TICKETS = """
for _ in range(12):
    tensor = data(400_000, rank)
    with dmlcomm.ticket(0):
        dist.all_reduce(tensor)
    assert torch.equal(tensor, total(400_000))
"""

# Each kind in a group of its own, which learns by itself.
OF_ONE_KIND = """
from functools import partial
count = 600_000
def broadcast(group):
    tensor = data(count, rank)
    dist.broadcast(tensor, 1, group)
    assert torch.equal(tensor, data(count, 1))
def reduce(group):
    tensor = data(count, rank)
    dist.reduce(tensor, 2, group=group)
    assert rank != 2 or torch.equal(tensor, total(count))
def gather(group):
    parts = [torch.empty(count) for _ in range(size)] if rank == 0 else None
    dist.gather(data(count, rank), parts, 0, group)
    assert all(torch.equal(part, data(count, p)) for p, part in enumerate(parts or []))
def scatter(group):
    own, parts = torch.empty(count), [data(count, p) for p in range(size)]
    dist.scatter(own, parts if rank == 1 else None, 1, group)
    assert torch.equal(own, data(count, rank))
def all_to_all(group):
    received = [torch.empty(count // size) for _ in range(size)]
    dist.all_to_all(received, [data(count // size, rank + p) for p in range(size)], group)
    assert all(torch.equal(r, data(count // size, rank + p)) for p, r in enumerate(received))
for operation in (broadcast, reduce, gather, scatter, all_to_all):
    group = dist.new_group(range(size))
    for _ in range(6):
        operation(group)
    rails = [c for c in dmlcomm.rails(group) if c.interface != "local"]
    say(operation.__name__, *[round(c.agreed_bits_per_second / 1e6) for c in rails])
"""

# Messages between neighbours before each collective; some are small, some take a while.
BETWEEN_MESSAGES = """
right, left = (rank + 1) % size, (rank - 1) % size
for turn in range(8):
    count = (100, 100_000)[turn % 2]
    received = torch.empty(count)
    sent = dist.isend(data(count, rank), right)
    dist.recv(received, left)
    sent.wait()
    assert torch.equal(received, data(count, left))
    tensor = data(800_000, rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(800_000))
"""

# Operations until the test has sent SIGUSR1, which says that the network has changed, and from then
# on until rates and shares of eth0 and eth1 are those of the network. The last signal ends them:
# the test has asked the ranks before.
FOLLOW = """
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
def operation():
    # How often the network has changed, the least rate of eth0, and its share of the bytes.
    before = {c.interface: c.bytes_sent for c in dmlcomm.rails()}
    tensor = data(400_000, rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(400_000))
    rails = {c.interface: c for c in dmlcomm.rails()}
    first, second = (rails[name].bytes_sent - before[name] for name in ("eth0", "eth1"))
    share, rate = first / (first + second), rails["eth0"].bits_per_second
    figures = torch.tensor([len(told), rate, share], dtype=torch.float64)
    dist.all_reduce(figures, op=dist.ReduceOp.MIN)
    return figures.tolist()
def follow(is_right, text):
    for number in range(1, 21):
        _, rate, share = operation()
        if is_right(rate, share):
            break
    else:
        raise AssertionError(f"{text}: after 20 operations {rate} bit/s, {share} of the bytes")
    for _ in range(20):  # until the reports count
        operation()
    if rank == 0:
        say(text)
is_fast = lambda rate, share: rate > 100e6 and share > 0.65
is_slow = lambda rate, share: 0 < rate < 75e6 and share < 0.65
follow(is_fast, "go")
for change, (is_right, text) in enumerate([(is_slow, "slower"), (is_fast, "back")], 1):
    while operation()[0] < change:
        pass
    follow(is_right, text)
while operation()[0] < 3:
    pass
fine()
"""


@pytest.fixture(scope="module")
def lab():
    with Lab("flat:3,2", rate="200mbit,50mbit") as lab:
        yield lab


@pytest.fixture(scope="module")
def grid():
    with Lab("grid:3x2", rate="200mbit,50mbit", options=Options(forwarding=False)) as lab:
        yield lab


def run(lab, script, *arguments):
    completed = run_script(lab, VALUES + script + "fine()", *arguments, deadline_s=DEADLINE_S)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("fine") == len(hosts(lab.graph()))
    return completed


def expect_shown(completed, word, least=0.75, most=1.25):
    """Each rank says this word with rates near those of the shapers."""
    shown = re.findall(rf"{word} (\d+) (\d+)$", completed.stdout, re.MULTILINE)
    assert len(shown) == completed.stdout.count("fine"), completed.stdout
    for rates in shown:
        for rate, shaper in zip(rates, SHAPERS, strict=True):
            assert least * shaper <= int(rate) <= most * shaper, completed.stdout


def test_rates_are_measured_where_drivers_are_wrong(lab):
    completed = run(lab, LARGE + SAY_RATES + SAY_RATES_IN_USE, *NO_RATES)
    assert "rates: 10000 Mb/s, 10000 Mb/s" in completed.stderr
    assert "algorithms are chosen anew" in completed.stderr
    expect_shown(completed, "rates")
    expect_shown(completed, "in use")


def test_ranks_agree_on_rates_by_operations_of_any_kind(lab):
    """Also by those after which not every rank would have heard of every other one."""
    completed = run(lab, OF_ONE_KIND, *NO_RATES)
    for kind in ("broadcast", "scatter", "all_to_all"):
        expect_shown(completed, kind, least=0.5)
    # Two ranks send to one: each shows the part of that port that it gets.
    for kind in ("reduce", "gather"):
        expect_shown(completed, kind, least=0.3)


def test_rates_are_learned_between_messages_of_two_ranks(lab):
    completed = run(lab, BETWEEN_MESSAGES + SAY_RATES, *NO_RATES)
    assert "algorithms are chosen anew" in completed.stderr
    expect_shown(completed, "rates")


def test_rates_are_learned_on_a_grid_whose_hosts_forward_nothing(grid):
    completed = run(grid, LARGE + SAY_RATES, *NO_RATES_OF_GRID)
    assert "eth1 10000 -> " in completed.stderr
    # What the fast level's shaper saves up while it waits for the slow one leaves at once.
    expect_shown(completed, "rates", least=0.5, most=2)


@pytest.mark.alone
def test_a_plan_file_fixes_all_choices_and_rails_are_measured_all_the_same(grid, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN_OF_GRID)
    script = LARGE + LARGE_GATHERS + SAY_RATES + SAY_RATES_IN_USE
    completed = run(grid, script, *NO_RATES_OF_GRID, "-e", f"DMLCOMM_PLAN={path}")
    assert "chosen anew" not in completed.stderr
    assert " instead of " not in completed.stderr
    assert completed.stdout.count("in use 10000 10000") == 6
    # Levels with equal shares wait for the slow one, and show a part of their rates.
    expect_shown(completed, "rates", least=0.2, most=2)


def test_rates_are_learned_also_where_all_operations_have_tickets(lab):
    completed = run(lab, WITH_TICKETS, *NO_RATES)
    assert "algorithms are chosen anew" in completed.stderr


def shown_by_inspect():
    """What rank 0 of the lab of this process tells of eth0."""
    own = group_of(0, lambda: {child.pid for child in psutil.Process().children(recursive=True)})
    (rail,) = [rail for rail in own["rails"] if rail["interface"] == "eth0"]
    return rail


def test_a_rate_that_changes_is_followed_within_20_operations_and_so_is_its_return(lab):
    process = start_script(lab, VALUES + FOLLOW, *NO_RATES)
    places = [f"{host}:eth0" for host in hosts(lab.graph())]

    def expect(text):
        line = process.stdout.readline()
        assert line == f"[0] {text}\n", line + process.communicate(timeout=DEADLINE_S)[1]

    expect("go")
    for rate, text in (("50mbit", "slower"), ("200mbit", "back")):
        for place in places:
            lab.set(place, f"rate={rate}")
        os.kill(process.pid, signal.SIGUSR1)
        expect(text)
        shown = shown_by_inspect()
        assert (shown["bits_per_second"] < 75e6) == (text == "slower")
        assert shown["round_trip_us"] > 0
        assert 2 * shown["agreed_message_us"] > shown["agreed_round_trip_us"] > 0
    os.kill(process.pid, signal.SIGUSR1)
    # Not communicate(): lines that came with the last one are in the buffer of readline().
    out, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(DEADLINE_S) == 0, errors
    assert out.count("fine") == len(places)
    in_use = [int(rate) for rate in re.findall(r"eth0 \d+ -> (\d+) Mb/s", errors)]
    speeds = " ".join("slow" if rate < 75 else "fast" for rate in in_use)
    assert re.search("fast( slow)+( fast)+$", speeds), errors


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
