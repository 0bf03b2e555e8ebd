"""Large tensors that come back lie in memory that the other ranks map; nobody else notices."""

import ctypes
import os
import platform
import random
import re
import signal
import struct
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import Ranks, report, run_ranks
from helpers.waiting import eventually

COUNT = 4 * 90_001  # elements of four bytes: more than a mebibyte, no whole number of pages
ROUNDS = 3  # tensors move when they come the second time


def _is_shared(tensor):
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in re.match(r"(\w+)-(\w+) ", line).groups())
        if first <= begin < last:
            return "dmlcomm-arena" in line and " rw-s " in line and end <= last
    return False


def _arena_is_missing():
    return "dmlcomm-arena" not in Path("/proc/self/maps").read_text()


def _values(rank, round_, count=COUNT):
    return torch.arange(count, dtype=torch.float32) % 1009 + 3 * rank + 5 * round_


def _sum(n, round_, count=COUNT):
    return sum(_values(rank, round_, count) for rank in range(n))


def _all_reduce(rank, n, round_, tensors):
    tensors["whole"].copy_(_values(rank, round_))
    dist.all_reduce(tensors["whole"])
    return tensors["whole"], _sum(n, round_)


def _reduce(rank, n, round_, tensors):
    tensors["whole"].copy_(_values(rank, round_))
    dist.reduce(tensors["whole"], n - 1)
    return tensors["whole"], _sum(n, round_) if rank == n - 1 else _values(rank, round_)


def _broadcast(rank, n, round_, tensors):
    tensors["whole"].copy_(_values(rank, round_))
    dist.broadcast(tensors["whole"], 1)
    return tensors["whole"], _values(1, round_)


def _all_gather(rank, n, round_, tensors):
    tensors["whole"].copy_(_values(rank, round_))
    dist.all_gather_into_tensor(tensors["wide"], tensors["whole"])
    return tensors["wide"], torch.cat([_values(r, round_) for r in range(n)])


def _reduce_scatter(rank, n, round_, tensors):
    tensors["wide"].copy_(_values(rank, round_, n * COUNT))
    dist.reduce_scatter_tensor(tensors["whole"], tensors["wide"])
    return tensors["whole"], _sum(n, round_, n * COUNT).chunk(n)[rank]


def _all_to_all(rank, n, round_, tensors):
    tensors["wide"].copy_(_values(rank, round_, n * COUNT))
    dist.all_to_all_single(tensors["other"], tensors["wide"])
    pieces = [_values(r, round_, n * COUNT).chunk(n)[rank] for r in range(n)]
    return tensors["other"], torch.cat(pieces)


OPERATIONS = [_all_reduce, _reduce, _broadcast, _all_gather, _reduce_scatter, _all_to_all]


def _every_operation(rank, n):
    if _arena_is_missing():
        return False
    for operation in OPERATIONS:
        tensors = {
            "whole": torch.empty(COUNT),
            "wide": torch.empty(n * COUNT),
            "other": torch.empty(n * COUNT),
        }
        for round_ in range(ROUNDS):
            result, expected = operation(rank, n, round_, tensors)
            torch.testing.assert_close(result, expected, rtol=0, atol=0, msg=operation.__name__)
        assert any(_is_shared(tensor) for tensor in tensors.values()), operation.__name__
    return True


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_operation_gives_the_same(world_size):
    if not all(run_ranks(_every_operation, world_size)):
        pytest.skip("this kernel gives no arena")


def _fork_in_between(rank, n):
    tensor = torch.empty(COUNT)
    for _ in range(ROUNDS):
        tensor.copy_(_values(rank, 0))
        dist.all_reduce(tensor)
    if _arena_is_missing():
        return False
    assert _is_shared(tensor)
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writable)
        os.read(readable, 1)
        sees_old = torch.equal(tensor, _sum(n, 0))
        tensor.fill_(-1)
        os._exit(0 if sees_old else 1)
    os.close(readable)
    assert not _is_shared(tensor)
    tensor.copy_(_values(rank, 1))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, _sum(n, 1))
    assert _is_shared(tensor)
    os.close(writable)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(tensor, _sum(n, 1))
    dist.barrier()
    return True


def test_a_fork_gives_the_child_the_values_of_its_moment():
    if not all(run_ranks(_fork_in_between, 2)):
        pytest.skip("this kernel gives no arena")


def _come_and_go(rank, n):
    held = []
    for i in range(12):
        tensor = torch.full((COUNT * 8,), float(rank))
        for _ in range(ROUNDS):
            dist.all_reduce(tensor)
        held.append(_shared_kib())
        if i % 2:
            tensor.untyped_storage().resize_(0)  # as FSDP frees what it has gathered
    return held


def _shared_kib():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssShmem:\s+(\d+) kB", status)[1])


def test_memory_of_tensors_that_are_gone_is_given_back():
    for held in run_ranks(_come_and_go, 2):
        assert max(held) <= 2 * held[0] + 8192, held


def _stays(rank, n):
    tensor = torch.ones(COUNT)
    for _ in range(ROUNDS):
        dist.all_reduce(tensor)
    return _is_shared(tensor)


@pytest.mark.parametrize(
    "variable", ["DMLCOMM_SHARE_TENSORS=0", "DMLCOMM_SHM_SINGLE_COPY=0", "DMLCOMM_TRANSPORT=tcp"]
)
def test_nothing_moves_where_that_is_forbidden(variable):
    name, value = variable.split("=")
    assert run_ranks(_stays, 2, env={name: value}) == [False, False]


def _forbid_copies_by_the_kernel():
    """From now on process_vm_readv and process_vm_writev are not permitted to any thread."""
    load_number, equal, answer = 0x20, 0x15, 0x06
    first, last, permit, refuse = 310, 311, 0x7FFF0000, 0x00050001
    instructions = [
        (load_number, 0, 0, 0),
        (equal, 2, 0, first),
        (equal, 1, 0, last),
        (answer, 0, 0, permit),
        (answer, 0, 0, refuse),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    code_memory = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code_memory))
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, seccomp, set_filter, all_threads = 38, 317, 1, 1
    assert libc.prctl(set_no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.syscall(seccomp, set_filter, all_threads, program) == 0, ctypes.get_errno()


def _without_the_kernel(rank, n):
    tensors = {name: torch.empty(n * COUNT) for name in ("wide", "other")}
    tensors["whole"] = torch.empty(COUNT)
    used = [_all_reduce, _broadcast, _all_gather, _reduce_scatter, _all_to_all]
    for round_ in range(ROUNDS):
        for operation in used:
            operation(rank, n, round_, tensors)
    if _arena_is_missing():
        return False
    _forbid_copies_by_the_kernel()
    for operation in used:
        result, expected = operation(rank, n, ROUNDS, tensors)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, msg=operation.__name__)
    return True


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of its system calls")
def test_what_is_shared_needs_no_copies_by_the_kernel():
    if not all(run_ranks(_without_the_kernel, 3)):
        pytest.skip("this kernel gives no arena")


def _use_the_tensor_after_a_failure(rank, n, go):
    tensor = torch.zeros(COUNT * 16)
    for _ in range(ROUNDS):
        dist.all_reduce(tensor)
    report("running")
    try:
        while True:
            dist.all_reduce(tensor)
    except dmlcomm.CommError:
        pass
    if rank == 1:
        return True  # it was continued, and has come to the end of what it did
    tensor.fill_(-7)
    report("failed")
    eventually(lambda: Path(go).exists(), "the stopped rank has ended")
    return bool((tensor == -7).all())


@pytest.mark.parametrize("seed", range(4))
def test_a_continued_rank_does_not_write_to_tensors_of_failed_operations(seed, tmp_path):
    go = tmp_path / "go"
    env = {"DMLCOMM_PEER_TIMEOUT_S": "0.5"}
    with Ranks(_use_the_tensor_after_a_failure, 3, (str(go),), env=env) as ranks:
        ranks.wait_for("running")
        time.sleep(random.Random(seed).uniform(0, 0.1))  # a moment of many operations
        ranks.send_signal(1, signal.SIGSTOP)
        ranks.wait_for("failed", [0, 2])
        ranks.send_signal(1, signal.SIGCONT)
        assert ranks.collect(only=[1]) == [True]
        go.touch()
        assert ranks.collect(only=[0, 2]) == [True, True]
