"""DMLCOMM_TRANSPORT=ucx: every operation on one host and on hosts with two NICs, cables that are
pulled, processes that die, and machines without UCX."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from dmlcomm import _core
from dmlcomm.lab import Lab
from helpers import Expectations, Ranks, meet, run_ranks
from helpers.multi_nic import (
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
from helpers.values import value

UCX = ("-e", "DMLCOMM_TRANSPORT=ucx")
# When a cable is pulled, UCX has bytes that the sockets don't take.
LITTLE_ROOM = ("-e", "UCX_TCP_SNDBUF=64k")
BYTES_PER_NIC = """
dist.all_reduce(torch.ones(2_000_000))
say("sent", *[c.bytes_sent for c in dmlcomm.rails() if c.interface != "local"])
fine()
"""

# Of UCX on one host: its TCP, or its shared memory. By default it has CMA beside that, by which
# receivers fetch large payloads from the memory of their senders.
REMOTE_MEMORY: dict[str, str] = {}
HERE = [{"UCX_TLS": "tcp"}, {"UCX_TLS": "posix"}, REMOTE_MEMORY]
NO_REMOTE_MEMORY = {"DMLCOMM_UCX_REMOTE_MEMORY": "off"}


@pytest.fixture(scope="module")
def ucx() -> None:
    offer = _core.probe_ucx()
    if not offer.works:
        pytest.skip(offer.detail)


def _messages_and_sums(rank, n, is_lent):
    expect = Expectations()
    after, before = (rank + 1) % n, (rank - 1) % n
    for count in (0, 1, 1001, 300_003):
        received = torch.zeros(count)
        works = [dist.isend(value(rank, count, torch.float32), after), dist.irecv(received, before)]
        for work in works:
            work.wait()
        expect.equal(received, value(before, count, torch.float32), count)
    for count in (1, 1001, 300_003, 4_000_000):
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        expect.equal(tensor, torch.full((count,), n * (n + 1) / 2), count)
    here = next(rail for rail in dmlcomm.rails() if rail.interface == "local")
    expect.true(here.bytes_lent > 0.9 * here.bytes_sent if is_lent else here.bytes_lent == 0, here)
    expect.check()
    begin = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - begin


@pytest.mark.alone
@pytest.mark.parametrize("environment", [*HERE, NO_REMOTE_MEMORY])
@pytest.mark.parametrize("world_size", [2, 3])
def test_messages_and_sums_on_one_host(ucx, world_size, environment):
    env = {"DMLCOMM_TRANSPORT": "ucx", **environment}
    closing = run_ranks(_messages_and_sums, world_size, environment is REMOTE_MEMORY, env=env)
    assert max(closing) < 0.9  # of what has not been confirmed, the group would wait for a second


def _descriptors_that_groups_leave(rank, n):
    tensor, counts = torch.ones(100_000), []
    for _ in range(15):
        group = dist.new_group(list(range(n)))
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts[-1] - counts[2]


@pytest.mark.parametrize("environment", HERE)
def test_groups_that_have_ended_leave_nothing(ucx, environment):
    left = run_ranks(
        _descriptors_that_groups_leave, 2, env={"DMLCOMM_TRANSPORT": "ucx", **environment}
    )
    assert max(left) <= 12, left  # a worker has 6: one that was busy for too long may stay


def _until_lost(rank, n):
    tensor = torch.ones(1_000_000)
    dist.all_reduce(tensor)
    meet("the first has ended")
    if rank == 1:
        os._exit(1)
    begin = time.monotonic()
    with pytest.raises(dmlcomm.PeerLostError, match="rank 1"):
        while True:
            dist.all_reduce(tensor)
    return time.monotonic() - begin


@pytest.mark.alone
@pytest.mark.parametrize("environment", HERE)
def test_survivors_name_the_rank_that_died(ucx, environment):
    with Ranks(_until_lost, 4, env={"DMLCOMM_TRANSPORT": "ucx", **environment}) as ranks:
        assert max(ranks.collect(only=[0, 2, 3])) < 1


def _exchange_with_too_little_room(rank, n):
    sent, received = torch.ones(1_000_000), torch.empty(1_000_000 // (1 + rank))
    works = [dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)]
    why = r"rank 1 .* expects 2000000 bytes, but rank 0 on host \S+ \(pid \d+\) sent 4000000"
    with pytest.raises(dmlcomm.CollectiveMismatchError, match=why):
        for work in works:
            work.wait()


@pytest.mark.parametrize("environment", HERE)
def test_both_ranks_hear_of_a_receive_that_is_too_small(ucx, environment):
    env = {"DMLCOMM_TRANSPORT": "ucx", **environment}
    run_ranks(_exchange_with_too_little_room, 2, env=env)


def test_every_operation_over_two_nics(ucx, lab_is_possible):
    with Lab("flat:3,2", rate="500mbit") as lab:
        result = run(lab, EVERY_OPERATION + BYTES_PER_NIC, *UCX)
    expect_fine(result, 3)
    lines = [line.split()[2:] for line in result.stdout.splitlines() if " sent " in line]
    assert len(lines) == 3, result.stdout
    for first, second in ((int(a), int(b)) for a, b in lines):
        assert 1 / 3 < first / second < 3, lines


# Hosts of the lab have no remote memory.
@pytest.mark.parametrize("remote_memory", ["auto", "on"])
def test_results_have_the_same_bits_when_a_cable_is_pulled_and_comes_back(
    ucx, lab_is_possible, remote_memory
):
    options = (*SAME_ORDER, *UCX, *LITTLE_ROOM, "-e", f"DMLCOMM_UCX_REMOTE_MEMORY={remote_memory}")
    with Lab("flat:3,2", rate="500mbit") as lab:
        process = started(lab, ENOUGH_LOST_AND_BACK + REPETITIONS, *options)
        lab.set("host1:eth0", "down")
        wait_for_loss(process)
        lab.set("host1:eth0", "up")
        for host in (0, 1, 2) * 6:
            lab.set(f"host{host}:eth0", "down")
            lab.set(f"host{host}:eth0", "up")
        counts, stderr = stopped(process)
    assert all(count >= 3 for count in counts), counts
    assert "has lost its carrier" in stderr


def test_a_rail_that_loses_everything_is_given_up(ucx, loss_is_possible):
    with Lab("flat:2,2", rate="500mbit") as lab:
        process = started(lab, ENOUGH_LOST + REPETITIONS, *SAME_ORDER, *UCX, *LITTLE_ROOM)
        lab.set("host1:eth1", "loss=100%")
        _, stderr = stopped(process)
    assert "nothing was confirmed for" in stderr


def test_a_grid_is_refused(ucx, lab_is_possible):
    with Lab("bcube:2,2", rate="500mbit") as lab:
        result = run(lab, "fine()", *UCX)
    assert result.returncode != 0
    assert "DMLCOMM_TRANSPORT=ucx needs a flat network" in result.stderr


GROUP_OF_TWO = """
import sys
import torch.distributed as dist
import dmlcomm
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("dmlcomm", store=store, rank=int(sys.argv[2]), world_size=2)
dist.barrier()
"""


# A file that is no library stands for a machine without UCX.
def test_ranks_without_ucx_are_told_what_to_install(tmp_path):
    (tmp_path / "libucp.so.0").write_text("nothing")
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "DMLCOMM_TRANSPORT": "ucx"}
    command = [sys.executable, "-c", GROUP_OF_TWO, str(tmp_path / "store")]
    options = {"env": env, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, rank], **options) for rank in ("0", "1")]
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert all(rank.returncode != 0 for rank in ranks)
    assert all("UCX does not load" in error and "libucx0" in error for error in errors), errors


def test_ranks_with_and_without_remote_memory_are_told_so(ucx, tmp_path):
    command = [sys.executable, "-c", GROUP_OF_TWO, str(tmp_path / "store")]
    ranks = []
    for rank, setting in enumerate(("on", "off")):
        env = {"DMLCOMM_TRANSPORT": "ucx", "DMLCOMM_UCX_REMOTE_MEMORY": setting}
        options = {"env": os.environ | env, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen([*command, str(rank)], **options))
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert all(rank.returncode != 0 for rank in ranks)
    assert all("must be the same on all ranks" in error for error in errors), errors
    assert "it has DMLCOMM_UCX_REMOTE_MEMORY=off, and this rank on" in errors[0]


def test_doctor_says_what_ucx_offers(ucx):
    command = [sys.executable, "-m", "dmlcomm", "doctor", "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    offer = {t["name"]: t for t in json.loads(printed)["transports"]}["ucx"]
    assert offer["works"]
    assert re.fullmatch(r"UCX \d+\.\d+\.\d+:( \w+/\S+)+", offer["detail"]), offer
    assert " tcp/lo" in offer["detail"]
