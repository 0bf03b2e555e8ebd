"""Scripts of ranks on hosts with several NICs, with known results, and how they are run."""

import os
import signal

from helpers.lab_scripts import run_script, start_script

DEADLINE_S = 120

# Sizes that do not divide, below and above what is sent at once.
VALUES = """
COUNTS = (1, 7, 1000, 70_001, 400_003)
def data(count, of_rank):
    return torch.arange(count, dtype=torch.float32) % 97 + of_rank
def total(count):
    return size * (torch.arange(count) % 97).float() + size * (size - 1) // 2
def fine():
    dist.barrier()
    say("fine")
    end()
"""

EVERY_OPERATION = """
for count in COUNTS:
    tensor = data(count, rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(count)), ("all_reduce", count)
    for root in (0, size - 1):
        tensor = data(count, rank)
        dist.broadcast(tensor, root)
        assert torch.equal(tensor, data(count, root)), ("broadcast", count)
        tensor = data(count, rank)
        dist.reduce(tensor, root)
        assert rank != root or torch.equal(tensor, total(count)), ("reduce", count)
    parts = [torch.empty(count) for _ in range(size)]
    dist.all_gather(parts, data(count, rank))
    assert all(torch.equal(part, data(count, p)) for p, part in enumerate(parts)), "all_gather"
    own = torch.empty(count)
    dist.reduce_scatter(own, [data(count, rank) + p for p in range(size)])
    assert torch.equal(own, total(count) + size * rank), ("reduce_scatter", count)
    received = [torch.empty(count) for _ in range(size)]
    dist.all_to_all(received, [data(count, rank) + 3 * p for p in range(size)])
    assert all(torch.equal(r, data(count, p) + 3 * rank) for p, r in enumerate(received))
    gathered = [torch.empty(count) for _ in range(size)] if rank == 1 else None
    dist.gather(data(count, rank), gathered, dst=1)
    assert rank != 1 or all(torch.equal(g, data(count, p)) for p, g in enumerate(gathered))
    dist.scatter(own, [data(count, p) for p in range(size)] if rank == 1 else None, src=1)
    assert torch.equal(own, data(count, rank)), ("scatter", count)
    dist.barrier()
    # Messages of one tag arrive in the order in which they were sent, whatever their sizes.
    others = [p for p in range(size) if p != rank]
    sent = [dist.isend(data(count + i, rank), p) for p in others for i in range(3)]
    for p in others:
        for i in range(3):
            message = torch.empty(count + i)
            dist.recv(message, p)
            assert torch.equal(message, data(count + i, p)), ("recv", count)
    for work in sent:
        work.wait()
"""

# Every way to send objects, small and large ones. With the last rank most ranks of a grid share no
# switch.
OBJECTS = """
def thing(p):
    return ("x" * 1000 * p, p)
last = size - 1
objects = [None] * size
dist.all_gather_object(objects, thing(rank))
assert objects == [thing(p) for p in range(size)]
gathered = [None] * size if rank == last else None
dist.gather_object(thing(rank), gathered, dst=last)
assert rank != last or gathered == objects
spread = objects if rank == last else [None] * size
dist.broadcast_object_list(spread, src=last)
assert spread == objects
own = [None]
dist.scatter_object_list(own, objects if rank == last else None, src=last)
assert own == [thing(rank)]
if rank == last:
    for p in range(last):
        dist.send_object_list(objects, dst=p)
else:
    received = [None] * size
    dist.recv_object_list(received, src=last)
    assert received == objects
"""

# Floats whose sum depends on the order: every repetition must give the same bits. Goes on until the
# test has sent SIGUSR1, and ENOUGH of the ranks' lanes were lost and came back.
REPETITIONS = """
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(True))
generator = torch.Generator().manual_seed(rank)
values = torch.rand(200_000, generator=generator)
expected = None
repetitions = 0
has_lost = False
while True:
    tensor = values.clone()
    dist.all_reduce(tensor)
    expected = tensor.clone() if expected is None else expected
    assert torch.equal(tensor.view(torch.int32), expected.view(torch.int32)), repetitions
    repetitions += 1
    lanes = [(c.lanes_lost, c.lanes_back) for c in dmlcomm.rails()]
    state = torch.tensor([*map(sum, zip(*lanes)), len(stop)])
    dist.all_reduce(state)
    lost, back, told = state.tolist()
    if rank == 0 and repetitions == 1:
        say("go")
    if rank == 0 and lost > 0 and not has_lost:
        say("lost a lane")
    has_lost = lost > 0
    if told and ENOUGH(lost, back):
        break
say("repeated", repetitions)
fine()
"""

# The same of ranks that tune, until 20 calls after the loss: they may choose another algorithm
# meanwhile, which adds in another order. But all ranks have the same bits of each call, and these
# are the sums but for what rounding makes of them.
CALLS_THAT_AGREE = """
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(True))
def values_of(p):
    return torch.rand(200_000, generator=torch.Generator().manual_seed(p))
values, exact = values_of(rank), sum(values_of(p).double() for p in range(size))
repetitions, calls_left = 0, 20
while calls_left > 0:
    tensor = values.clone()
    dist.all_reduce(tensor)
    # Of numbers that are not negative each addition is off by half an epsilon at most.
    bound = size * torch.finfo(torch.float32).eps
    assert torch.all((tensor.double() - exact).abs() <= bound * exact), repetitions
    least = tensor.view(torch.int32).clone()
    most = least.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert torch.equal(least, most), repetitions
    repetitions += 1
    state = torch.tensor([sum(c.lanes_lost for c in dmlcomm.rails()), len(stop)])
    dist.all_reduce(state)
    lost, told = state.tolist()
    if rank == 0 and repetitions == 1:
        say("go")
    calls_left -= lost > 0 and told > 0
say("repeated", repetitions)
fine()
"""

# Ranks that tune may choose another algorithm meanwhile, which adds in another order.
SAME_ORDER = ("-e", "DMLCOMM_AUTOTUNE=0")

ENOUGH_LOST = "ENOUGH = lambda lost, back: lost > 0\n"
ENOUGH_LOST_AND_BACK = "ENOUGH = lambda lost, back: 0 < lost == back\n"


def run(lab, script, *arguments):
    return run_script(lab, VALUES + script, *arguments, deadline_s=DEADLINE_S)


def started(lab, script, *arguments):
    """The run, once rank 0 has finished its first operation."""
    process = start_script(lab, VALUES + script, *arguments)
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] go\n"
    return process


def wait_for_loss(process):
    """Until a run of REPETITIONS has noticed that a lane is lost."""
    assert process.stdout.readline() == "[0] lost a lane\n"


def stopped(process):
    """How often each rank repeated, and stderr, of a run of REPETITIONS that ends now."""
    os.kill(process.pid, signal.SIGUSR1)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stdout + stderr
    counts = [int(line.split()[2]) for line in stdout.splitlines() if "repeated" in line]
    assert counts, stdout
    return counts, stderr


def expect_fine(result, num_ranks):
    assert result.returncode == 0, result.stdout + result.stderr
    finished = [line for line in result.stdout.splitlines() if line.endswith("fine")]
    assert sorted(finished) == sorted(f"[{rank}] fine" for rank in range(num_ranks))
