"""Life of groups: registration, new_group, split, options, timeouts, monitored barrier."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import eventually, run_ranks


def test_registration_is_idempotent():
    from dmlcomm.backends import register

    register()
    register()
    assert dist.Backend.backend_list.count("dmlcomm") == 1
    assert dist.Backend.backend_capability["dmlcomm"] == ["cpu", "cuda"]
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"


def _counters(rank, n):
    before = dmlcomm.counters()
    dist.all_reduce(torch.ones(100_000))
    now = dmlcomm.counters()
    assert now.keys() == before.keys()
    assert all(type(value) is float for value in now.values())
    assert now["dmlcomm/collectives"] == before["dmlcomm/collectives"] + 1
    assert now["dmlcomm/local/bytes_sent"] >= before["dmlcomm/local/bytes_sent"] + 400_000
    (local,) = (rail for rail in dmlcomm.rails() if rail.interface == "local")
    assert now["dmlcomm/local/bytes_sent"] == local.bytes_sent
    _check_log_of(now)


class _Writer:
    """What is used of a SummaryWriter."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.scalars.append((tag, scalar_value, global_step))


def _check_log_of(counters):
    """Nothing is sent meanwhile, so counts stay."""
    writer, calls = _Writer(), []
    dmlcomm.log_counters(writer, 7)
    assert [name for name, _, _ in writer.scalars] == list(counters)
    assert ("dmlcomm/local/bytes_sent", counters["dmlcomm/local/bytes_sent"], 7) in writer.scalars

    def log(*arguments, **options):
        calls.append((arguments, options))

    dmlcomm.log_counters(log)
    dmlcomm.log_counters(log, step=7)
    assert [options for _, options in calls] == [{}, {"step": 7}]
    for (logged,), _ in calls:
        assert logged.keys() == counters.keys()
        assert logged["dmlcomm/collectives"] == counters["dmlcomm/collectives"]
    with pytest.raises(TypeError, match="str has no add_scalar"):
        dmlcomm.log_counters("a file")


def test_counters_are_numbers_with_names_which_loggers_take():
    run_ranks(_counters, 2, env={"DMLCOMM_TRANSPORT": "tcp"})


def _init(rank, world_size):
    place = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}
    assert not dmlcomm.init()
    assert not dist.is_initialized()
    dmlcomm.log_counters(pytest.fail)  # there is nothing to log
    _init_without_torchs_variables()
    os.environ["WORLD_SIZE"] = place["WORLD_SIZE"]
    with pytest.raises(ValueError, match="RANK expected"):
        dmlcomm.init()
    os.environ.update(place, MASTER_ADDR="localhost", MASTER_PORT="0")
    assert dmlcomm.init(timeout=timedelta(seconds=30))
    group = dist.group.WORLD
    assert (dist.get_backend(), dist.get_world_size()) == ("dmlcomm", world_size)
    assert dmlcomm.init("gloo")
    assert dist.group.WORLD is group
    dist.destroy_process_group()


def _init_without_torchs_variables():
    """Where srun or mpirun has started the process, and where arguments say its place."""
    launchers = {
        "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
        "Open MPI": [f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_RANK")],
        "MPICH": ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    }
    for launcher, names in launchers.items():
        with mock.patch.dict(os.environ, dict(zip(names, "310", strict=True))):
            with pytest.raises(ValueError, match=f"{launcher}.* has started 3 processes") as raised:
                dmlcomm.init()
            for name, value in zip(names, "310", strict=True):
                assert f"{name}={value}" in str(raised.value)
                assert f"=${name}" in str(raised.value)
            os.environ[names[0]] = "1"
            assert not dmlcomm.init()
    # The script of sbatch is alone, whatever the job has.
    with mock.patch.dict(os.environ, SLURM_NTASKS="3", SLURM_PROCID="0"):
        assert not dmlcomm.init()
    with mock.patch.dict(os.environ, SLURM_STEP_NUM_TASKS="3"):
        assert dmlcomm.init(rank=0, world_size=1, store=dist.HashStore())
    dist.destroy_process_group()


def test_init_makes_a_group_where_a_launcher_has_set_the_variables_and_only_once():
    run_ranks(_init, 1, make_group=False)


def _run_python(code, *, env=None, timeout=60):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_import_alone_does_not_load_torch():
    done = _run_python("import dmlcomm, sys; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_backend_is_found_without_import():
    done = _run_python("""
        import torch, torch.distributed as dist
        dist.init_process_group("dmlcomm", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        print(tensor.tolist(), dist.get_backend())
        dist.destroy_process_group()
    """)
    assert done.stdout == "[1.0, 1.0] dmlcomm\n", done.stderr


@pytest.mark.parametrize("pending", [False, True])
def test_exit_without_destroy_is_clean(pending, tmp_path):
    code = f"""
        import sys, torch, torch.distributed as dist
        import dmlcomm
        rank = int(sys.argv[1]) if len(sys.argv) > 1 else int(__import__("os").environ["RANK"])
        store = dist.FileStore("{tmp_path}/store", 2)
        dist.init_process_group("dmlcomm", store=store, rank=rank, world_size=2)
        dist.all_reduce(torch.ones(10))
        dist.barrier()
        if {pending} and rank == 0:
            work = dist.all_reduce(torch.ones(10), async_op=True)
            future = work.get_future().then(lambda f: None)
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=60)
        assert rank.returncode == 0, errors


def _subgroups(rank, n):
    evens = dist.new_group(list(range(0, n, 2)))
    odds = dist.new_group(list(range(1, n, 2)))
    mine = odds if rank % 2 else evens
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == sum(range(rank % 2, n, 2))
    everyone = torch.tensor([float(rank)])
    dist.all_reduce(everyone)
    assert everyone.item() == sum(range(n))
    dist.broadcast(tensor, src=rank % 2, group=mine)
    received = [None] * len(range(rank % 2, n, 2))
    dist.all_gather_object(received, rank, group=mine)
    assert received == list(range(rank % 2, n, 2))
    dist.destroy_process_group(mine)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_new_group(transport):
    run_ranks(_subgroups, 5, env={"DMLCOMM_TRANSPORT": transport})


def _split(rank, n):
    halves = [list(range(n // 2)), list(range(n // 2, n))]
    group = dist.split_group(split_ranks=halves)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == sum(halves[0] if rank in halves[0] else halves[1])
    reversed_group = dist.split_group(split_ranks=[list(range(n))[::-1]])
    assert dist.get_group_rank(reversed_group, rank) == n - 1 - rank
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, group_src=0, group=reversed_group)
    assert tensor.item() == n - 1
    first = dist.split_group(split_ranks=[[0, 1]])
    assert (first is dist.GroupMember.NON_GROUP_MEMBER) == (rank > 1)


def test_split_group():
    run_ranks(_split, 4)


def _options_and_description(rank, n):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.name() == "dmlcomm"
    assert backend.supports_splitting
    assert backend.supports_coalescing
    assert backend.options._timeout == timedelta(seconds=50)
    dmlcomm.set_timeout(timedelta(seconds=33))
    assert backend.options._timeout == timedelta(seconds=33)
    assert f"rank {rank}" in dmlcomm.describe()


def test_options():
    run_ranks(_options_and_description, 2)


def _algorithm_of_a_group(rank, n):
    with pytest.raises(ValueError, match="teleport"):
        dmlcomm.Options(algorithm="all_reduce=teleport")
    values = torch.rand(1000, generator=torch.Generator().manual_seed(rank))
    found = {}
    for name in ("ring", "recursive_doubling"):
        group = dist.new_group(pg_options=dmlcomm.Options(algorithm=f"all_reduce={name}"))
        found[name] = values.clone()
        dist.all_reduce(found[name], group=group)
    assert torch.allclose(found["ring"], found["recursive_doubling"])
    assert not torch.equal(found["ring"], found["recursive_doubling"])  # adds in another order
    with pytest.raises(dmlcomm.CommError, match="all_reduce=bml needs"):
        dist.new_group(pg_options=dmlcomm.Options(algorithm="all_reduce=bml"))


def test_a_group_has_an_algorithm_of_its_own():
    run_ranks(_algorithm_of_a_group, 4, env={"DMLCOMM_TRANSPORT": "tcp"})


def _timeout_of_an_operation(rank, n):
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["over"])
        return
    dmlcomm.set_timeout(timedelta(seconds=1))
    started = time.monotonic()
    with pytest.raises(dmlcomm.CommTimeoutError, match=r"all_reduce.*"):
        dist.all_reduce(torch.ones(1))
    assert 0.9 < time.monotonic() - started < 2.5
    store.set("over", "")


@pytest.mark.alone
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_operation_ends_at_its_deadline(transport):
    run_ranks(_timeout_of_an_operation, 2, env={"DMLCOMM_TRANSPORT": transport})


def _monitored(rank, n, absent, wait_all_ranks):
    store = dist.distributed_c10d._get_default_store()
    dmlcomm.monitored_barrier(timeout=timedelta(seconds=20))
    if rank in absent:
        store.wait([f"rank {r} is through" for r in range(n) if r not in absent])
        return None
    try:
        dmlcomm.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=wait_all_ranks)
        message = ""
    except dmlcomm.CommTimeoutError as error:
        message = str(error)
    store.set(f"rank {rank} is through", "")
    return message


@pytest.mark.parametrize(
    ("absent", "wait_all_ranks", "named"),
    [
        ([], True, None),
        ([2], False, "rank 2 (global rank 2);"),
        ([1, 3], True, "rank 1 (global rank 1), 3 (global rank 3);"),
        ([1, 3], False, "rank 1 (global rank 1);"),
        ([0], True, "rank 0 (global rank 0);"),
    ],
)
def test_monitored_barrier_names_the_missing(absent, wait_all_ranks, named):
    messages = run_ranks(_monitored, 4, absent, wait_all_ranks)
    present = [message for rank, message in enumerate(messages) if rank not in absent]
    if named is None:
        assert present == [""] * 4
    else:
        assert all(named in message for message in present), present


def _monitored_in_a_subgroup(rank, n):
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group([0, 2])
    dmlcomm.monitored_barrier(group, timeout=timedelta(seconds=20))
    if rank == 2:
        store.wait(["over"])
    elif rank == 0:
        with pytest.raises(dmlcomm.CommTimeoutError, match=r"rank 1 \(global rank 2\)"):
            dmlcomm.monitored_barrier(group, timeout=timedelta(seconds=0))
        store.set("over", "")


def test_monitored_barrier_of_a_subgroup():
    run_ranks(_monitored_in_a_subgroup, 3)


def _thousand_groups(rank, n, count):
    def use_one():
        group = dist.new_group()
        tensor = torch.ones(100)
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == n
        dist.destroy_process_group(group)

    for _ in range(50):
        use_one()
    process = psutil.Process()
    before = _resources(process)
    for _ in range(count):
        use_one()
    with contextlib.suppress(AssertionError):  # those below say more
        # Threads that end are counted until the kernel has let go of them.
        eventually(lambda: _resources(process)[:2] == before[:2], "the end of threads", 5)
    after = _resources(process)
    assert after[0] == before[0], f"descriptors: {before[0]} before, {after[0]} after"
    assert after[1] == before[1], f"threads: {before[1]} before, {after[1]} after"
    # torch itself keeps about 2 KB per group (gloo, too), and the allocator's arenas, one per new
    # thread, settle within a few MB. A leaked segment or channel is far above that.
    growth = after[2] - before[2]
    assert growth < 6 << 20, f"{growth} bytes of memory for {count} groups"


def _resources(process):
    return process.num_fds(), process.num_threads(), process.memory_info().rss


@pytest.mark.parametrize(("transport", "count"), [("auto", 1000), ("tcp", 300)])
def test_making_groups_leaks_nothing(transport, count):
    env = {"DMLCOMM_TRANSPORT": transport}
    run_ranks(_thousand_groups, 2, count, env=env, deadline_s=150)


def _threads_of_one_group(rank, n):
    before = threading.active_count()
    for _ in range(20):
        dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()
    assert threading.active_count() == before
    eventually(lambda: "dmlcomm-done" not in _thread_names(), "the end of idle threads", 10)


def _thread_names():
    names = []
    for comm in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append(comm.read_text().rstrip())
    return names


def test_idle_completion_threads_leave():
    run_ranks(_threads_of_one_group, 2)


def _forked_child(rank, n):
    dist.all_reduce(torch.ones(10))
    pid = os.fork()
    if pid == 0:
        dist.destroy_process_group()
        os._exit(7)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == n


def test_forked_child_leaves_the_group_alone():
    run_ranks(_forked_child, 2)
