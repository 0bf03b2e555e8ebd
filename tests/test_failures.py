"""When a rank dies, freezes or disagrees: real signals, real processes, bounded times."""

import contextlib
import itertools
import multiprocessing
import os
import random
import re
import signal
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import Ranks, meet, report, run_ranks, until_asleep

pytestmark = pytest.mark.alone

TRANSPORTS = ["auto", "tcp"]
SMALL, LARGE = 100, 1_000_000


def _parts(n, count):
    return [torch.ones(count) for _ in range(n)]


def _exchange_messages(group, n, count):
    """Everybody with everybody, so that every survivor needs the rank that fails."""
    rank = dist.get_rank(group)
    works = [dist.isend(torch.ones(count), r, group=group) for r in range(n) if r != rank]
    works += [dist.irecv(torch.ones(count), r, group=group) for r in range(n) if r != rank]
    for work in works:
        work.wait()


# By the name that messages use: one round of the operation on every rank. With roots, every rank is
# root in turn, so that no survivor can go on without the others.
OPERATIONS = {
    "all_reduce": lambda g, n, c: dist.all_reduce(torch.ones(c), group=g),
    "reduce": lambda g, n, c: [dist.reduce(torch.ones(c), r, group=g) for r in range(n)],
    "broadcast": lambda g, n, c: [dist.broadcast(torch.ones(c), r, group=g) for r in range(n)],
    "all_gather": lambda g, n, c: dist.all_gather(_parts(n, c), torch.ones(c), group=g),
    "gather": lambda g, n, c: [
        dist.gather(torch.ones(c), _parts(n, c) if dist.get_rank(g) == r else None, dst=r, group=g)
        for r in range(n)
    ],
    "scatter": lambda g, n, c: [
        dist.scatter(torch.ones(c), _parts(n, c) if dist.get_rank(g) == r else None, src=r, group=g)
        for r in range(n)
    ],
    "reduce_scatter": lambda g, n, c: dist.reduce_scatter(torch.ones(c), _parts(n, c), group=g),
    "all_to_all": lambda g, n, c: dist.all_to_all(_parts(n, c), _parts(n, c), group=g),
    "barrier": lambda g, n, c: dist.barrier(group=g),
    "send": _exchange_messages,
}


def _run_until_error(group, n, operation, count):
    """The error that ends an endless loop of the operation, and when it came."""
    try:
        while True:
            OPERATIONS[operation](group, n, count)
    except dmlcomm.CommError as error:
        return type(error).__name__, str(error), time.time()


def _exchange_endlessly(rank, n, operation, count):
    for _ in range(3):
        OPERATIONS[operation](None, n, count)
    report("running")
    return _run_until_error(None, n, operation, count)


def _check_error(outcome, operation, failed_at, limit_s):
    kind, message, at = outcome
    assert kind == "PeerLostError", message
    assert at - failed_at < limit_s, f"{at - failed_at:.2f} s: {message}"
    assert "rank 1" in message
    assert socket.gethostname() in message
    # Between two rounds of messages nothing is in flight, and no collective has begun.
    expected = "send|recv|before the first collective" if operation == "send" else operation
    assert re.search(expected, message), message
    assert operation == "send" or re.search(r"sequence (number )?\d+|#\d+", message), message


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_survivors_name_the_killed_rank(transport, operation, count):
    env = {"DMLCOMM_TRANSPORT": transport}
    with Ranks(_exchange_endlessly, 3, (operation, count), env=env) as ranks:
        ranks.wait_for("running")
        killed_at = time.time()
        ranks.send_signal(1, signal.SIGKILL)
        for outcome in ranks.collect(only=[0, 2]):
            _check_error(outcome, operation, killed_at, limit_s=1.0)


def _exchange_beside_workers(rank, n):
    # As in a script: the ranks of these tests would not fork by themselves.
    loader = iter(
        torch.utils.data.DataLoader(range(1000), num_workers=2, multiprocessing_context="fork")
    )
    dist.all_reduce(torch.ones(SMALL))
    next(loader)  # the workers run; they inherited what was open when they were forked
    report("running")
    return _run_until_error(None, n, "all_reduce", SMALL)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_rank_is_noticed_while_its_workers_live(transport):
    with Ranks(_exchange_beside_workers, 3, env={"DMLCOMM_TRANSPORT": transport}) as ranks:
        ranks.wait_for("running")
        killed_at = time.time()
        ranks.send_signal(1, signal.SIGKILL)
        for outcome in ranks.collect(only=[0, 2]):
            _check_error(outcome, "all_reduce", killed_at, limit_s=1.0)


def _use_the_group_in_a_child(rank, n):
    dist.all_reduce(torch.ones(SMALL))
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child():
        try:
            dist.all_reduce(torch.ones(SMALL))
        except dmlcomm.CommError as error:
            sender.send(str(error))
        dist.destroy_process_group()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert receiver.poll(10)
    message = receiver.recv()
    process.join(10)
    assert process.exitcode == 0
    # The parent's group has not noticed.
    total = torch.ones(SMALL)
    dist.all_reduce(total)
    assert total.tolist() == [n] * SMALL
    return message


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_forked_child_cannot_use_the_group_of_its_parent(transport):
    for message in run_ranks(_use_the_group_in_a_child, 2, env={"DMLCOMM_TRANSPORT": transport}):
        assert "belongs to the parent" in message


def _exchange_in_every_group(rank, n, count):
    """One thread and one group per operation, all at the same time."""
    groups = {name: dist.new_group() for name in OPERATIONS}
    for name, group in groups.items():
        OPERATIONS[name](group, n, count)
    outcomes = {}

    def run(name):
        outcomes[name] = _run_until_error(groups[name], n, name, count)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in groups]
    for thread in threads:
        thread.start()
    report("running")
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_survivors_notice_a_frozen_rank_in_every_operation(transport, count):
    env = {"DMLCOMM_TRANSPORT": transport, "DMLCOMM_PEER_TIMEOUT_S": "2"}
    with Ranks(_exchange_in_every_group, 3, (count,), env=env) as ranks:
        ranks.wait_for("running")
        stopped_at = time.time()
        ranks.send_signal(1, signal.SIGSTOP)
        for outcomes in ranks.collect(only=[0, 2]):
            for operation, outcome in outcomes.items():
                _check_error(outcome, operation, stopped_at, limit_s=3.0)


def _idle_then_all_reduce(rank, n, idle_s):
    dist.all_reduce(torch.ones(10))
    report("idle")
    time.sleep(idle_s)
    started = time.time()
    try:
        dist.all_reduce(torch.ones(10))
    except dmlcomm.CommError as error:
        return type(error).__name__, str(error), time.time() - started
    return "none", "", 0.0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_loss_while_idle_is_noticed_by_the_next_operation(transport, number):
    env = {"DMLCOMM_TRANSPORT": transport, "DMLCOMM_PEER_TIMEOUT_S": "1"}
    with Ranks(_idle_then_all_reduce, 3, (2.5,), env=env) as ranks:
        ranks.wait_for("idle")
        ranks.send_signal(1, number)
        for kind, message, took_s in ranks.collect(only=[0, 2]):
            assert kind == "PeerLostError", message
            assert "rank 1" in message
            assert took_s < 0.5, message


def _all_reduce_until(rank, n, end):
    """Until a file is there; all ranks end together, whoever sees it first."""
    dist.all_reduce(torch.ones(10))
    report("running")
    for i in itertools.count():
        tensor = torch.full((1000,), float(i))
        tensor[0] = Path(end).exists()
        dist.all_reduce(tensor)
        assert tensor[1:].eq(i * n).all()
        if tensor[0].item() > 0:
            return


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_short_pause_is_not_a_death(transport, tmp_path):
    end = tmp_path / "end"
    env = {"DMLCOMM_TRANSPORT": transport, "DMLCOMM_PEER_TIMEOUT_S": "3"}
    with Ranks(_all_reduce_until, 3, (str(end),), env=env) as ranks:
        ranks.wait_for("running")
        ranks.send_signal(1, signal.SIGSTOP)
        time.sleep(1)  # the pause
        ranks.send_signal(1, signal.SIGCONT)
        end.touch()
        ranks.collect()


def _error_is_sticky(rank, n):
    dist.all_reduce(torch.ones(10))
    meet("the good one has ended")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    messages = []
    pending = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
    for work in pending:
        with pytest.raises(dmlcomm.PeerLostError) as caught:
            work.wait()
        messages.append(str(caught.value))
        assert not work.is_success()
        assert isinstance(work.exception(), BaseException)
    for call in (lambda: dist.barrier(), lambda: dist.all_reduce(torch.ones(5))):
        with pytest.raises(dmlcomm.PeerLostError) as caught:
            call()
        messages.append(str(caught.value))
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    with pytest.raises(dmlcomm.PeerLostError):
        future.wait()
    assert all("rank 1" in message for message in messages), messages
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_first_failure_is_kept(transport):
    with Ranks(_error_is_sticky, 3, env={"DMLCOMM_TRANSPORT": transport}) as ranks:
        ranks.collect(only=[0, 2])


DISAGREEMENTS = {
    "operation": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.broadcast(torch.ones(4), 0),
        r"all_reduce.*broadcast|broadcast.*all_reduce",
    ),
    "size": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(5)),
        r"\b(4|16)\b.*\b(5|20)\b|\b(5|20)\b.*\b(4|16)\b",
    ),
    "large size": (
        lambda: dist.all_reduce(torch.ones(3_000_000)),
        lambda: dist.all_reduce(torch.ones(3_000_001)),
        r"3000000.*3000001|3000001.*3000000|12000000.*12000004|12000004.*12000000",
    ),
    "dtype": (
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.float32)),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32)),
        r"f32.*i32|i32.*f32",
    ),
    "operator": (
        lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.SUM),
        lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX),
        r"sum.*max|max.*sum",
    ),
    "root": (
        lambda: dist.broadcast(torch.ones(4), 0),
        lambda: dist.broadcast(torch.ones(4), 1),
        r"root",
    ),
    "exchanged size": (  # the first is large and the second small, which are sent in other ways
        lambda: dist.all_to_all_single(
            torch.ones(30), torch.ones(50_020), [10] * 3, [10, 50_000, 10]
        ),
        lambda: dist.all_to_all_single(torch.ones(30), torch.ones(30)),
        r"\b40\b.*\b200000\b|\b200000\b.*\b40\b",
    ),
    "gathered size": (
        lambda: dist.all_gather_into_tensor(torch.ones(12), torch.ones(4)),
        lambda: dist.all_gather_into_tensor(torch.ones(15), torch.ones(5)),
        r"all_gather",
    ),
}


def _disagree(rank, n, what):
    usual, other, _ = DISAGREEMENTS[what]
    started = time.monotonic()
    with pytest.raises(dmlcomm.CollectiveMismatchError) as caught:
        dist.barrier()  # a slow rank may still be in here when the others find out
        (other if rank == 1 else usual)()
        dist.barrier()  # a broadcast's root may be done before it learns
    assert time.monotonic() - started < 5
    return str(caught.value)


@pytest.mark.parametrize("what", DISAGREEMENTS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_disagreement_is_an_error_on_every_rank_that_says_both_sides(transport, what):
    for message in run_ranks(_disagree, 3, what, env={"DMLCOMM_TRANSPORT": transport}):
        assert re.search(DISAGREEMENTS[what][2], message), message
        assert "rank 1" in message, message


def _message_of_another_size(rank, n):
    dist.barrier()
    with pytest.raises(dmlcomm.CommError) as caught:
        if rank == 0:
            dist.send(torch.ones(10), 1)
            dist.barrier()
        else:
            dist.recv(torch.ones(11), 0)
    return str(caught.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_message_of_another_size_is_an_error(transport):
    messages = run_ranks(_message_of_another_size, 2, env={"DMLCOMM_TRANSPORT": transport})
    assert all("40" in message and "44" in message for message in messages), messages


def _abort_from_a_thread(rank, n):
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 0:
        threading.Timer(0.3, lambda: dmlcomm.abort("the test wants it")).start()
    elif rank == 2:  # what the others wait for comes when they wait no longer
        store.wait(["rank 0 is out", "rank 1 is out"], timedelta(seconds=10))
    started = time.monotonic()
    with pytest.raises(dmlcomm.AbortedError, match="the test wants it"):
        dist.all_reduce(torch.ones(10))
    assert time.monotonic() - started < 1.3
    store.set(f"rank {rank} is out", "")
    with pytest.raises(dmlcomm.AbortedError):
        dist.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_unblocks_every_rank(transport):
    run_ranks(_abort_from_a_thread, 3, env={"DMLCOMM_TRANSPORT": transport})


def _destroy_while_waiting(rank, n):
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    work = dist.all_reduce(torch.ones(10), async_op=True) if rank == 0 else None
    if rank == 0:
        caught = []

        def wait():
            try:
                work.wait()
            except dmlcomm.CommError as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until_asleep(os.getpid(), thread.native_id)
        dist.destroy_process_group()
        thread.join(5)
        assert not thread.is_alive()
        assert [type(error) for error in caught] == [dmlcomm.AbortedError]
        store.set("rank 0 is out", "")
    else:
        store.wait(["rank 0 is out"], timedelta(seconds=10))


def test_destroying_a_group_ends_its_operations():
    run_ranks(_destroy_while_waiting, 2)


def _wait_for_interrupt(rank, n, how):
    if rank == 1:
        dist.barrier()
        signal.pause()
        return None
    dist.barrier()
    report("waiting")
    try:
        if how == "sync":
            dist.all_reduce(torch.ones(10))
        elif how == "async":
            dist.all_reduce(torch.ones(10), async_op=True).wait()
        else:
            dist.recv(torch.ones(10), 1)
    except KeyboardInterrupt:
        return time.time()


@pytest.mark.parametrize("how", ["sync", "async", "recv"])
def test_interrupt_works_at_once(how):
    with Ranks(_wait_for_interrupt, 2, (how,)) as ranks:
        ranks.wait_for("waiting", [0])
        until_asleep(ranks.pid(0))
        sent_at = time.time()
        ranks.send_signal(0, signal.SIGINT)
        (interrupted_at,) = ranks.collect(only=[0])
        assert interrupted_at is not None
        assert interrupted_at - sent_at < 0.5


def _interrupted_in_rendezvous(rank, n, path):
    store = dist.FileStore(path, 2)
    report("waiting")
    try:
        dist.init_process_group(
            "dmlcomm", store=store, rank=0, world_size=2, timeout=timedelta(seconds=30)
        )
    except KeyboardInterrupt:
        return time.time()


def test_interrupt_works_while_ranks_are_missing(tmp_path):
    path = str(tmp_path / "store")
    with Ranks(_interrupted_in_rendezvous, 1, (path,), make_group=False) as ranks:
        ranks.wait_for("waiting")
        until_asleep(ranks.pid(0))
        sent_at = time.time()
        ranks.send_signal(0, signal.SIGINT)
        (interrupted_at,) = ranks.collect()
        assert interrupted_at is not None
        assert interrupted_at - sent_at < 1.0


def _missing_rank(rank, n, path):
    started = time.monotonic()
    with pytest.raises(dmlcomm.CommError, match="rank"):
        dist.init_process_group(
            "dmlcomm",
            store=dist.FileStore(path, 2),
            rank=0,
            world_size=2,
            timeout=timedelta(seconds=1),
        )
    assert time.monotonic() - started < 4


def test_rank_that_never_starts_is_an_error(tmp_path):
    run_ranks(_missing_rank, 1, str(tmp_path / "store"), make_group=False)


class _NobodyIsLast(dist.Store):
    """As if the last rank of the exchange of hosts had died before it could tell the others."""

    def __init__(self, store):
        super().__init__()
        self._store = store

    def set(self, key, value):
        self._store.set(key, value)

    def get(self, key):
        return self._store.get(key)

    def add(self, key, value):
        count = self._store.add(key, value)
        return 1 if key.endswith("host/arrived") else count

    def check(self, keys):
        return self._store.check(keys)

    def wait(self, keys, *timeout):
        self._store.wait(keys, *timeout)

    def multi_get(self, keys):
        return self._store.multi_get(keys)

    def has_extended_api(self):
        return True

    def clone(self):
        return self


def _wait_for_the_last_word(rank, n, path):
    dist.init_process_group(
        "dmlcomm",
        store=_NobodyIsLast(dist.FileStore(path, n)),
        rank=rank,
        world_size=n,
        timeout=timedelta(hours=1),
    )
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    return tensor[0].item()


# Who waited for the word would wait for an hour.
def test_ranks_meet_without_the_word_of_the_last_one(tmp_path):
    path = str(tmp_path / "store")
    assert run_ranks(_wait_for_the_last_word, 2, path, make_group=False) == [2, 2]


def _listen_and_exchange(rank, n, end):
    dist.all_reduce(torch.ones(10))
    mine = psutil.Process().net_connections(kind="tcp")
    report([c.laddr.port for c in mine if c.status == psutil.CONN_LISTEN])
    _all_reduce_until(rank, n, end)


def test_stranger_changes_nothing(tmp_path):
    end = tmp_path / "end"
    noise = random.Random(7)
    greetings = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"DMLC" + bytes(60)]
    greetings += [noise.randbytes(noise.randrange(1, 5000)) for _ in range(30)]
    env = {"DMLCOMM_TRANSPORT": "tcp"}
    with Ranks(_listen_and_exchange, 2, (str(end),), env=env) as ranks:
        ports = [port for listening in ranks.first_messages() for port in listening]
        assert ports, "no rank listens: nothing is tested"
        for port in ports:
            for greeting in greetings:
                with contextlib.suppress(OSError):
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=1)
                    stranger.sendall(greeting)
                    stranger.close()
        end.touch()
        ranks.collect()


def _meet_with_secrets(rank, n, path, secrets):
    os.environ["DMLCOMM_SECRET"] = secrets[rank]
    store = dist.FileStore(path, n)
    dist.init_process_group("dmlcomm", store=store, rank=rank, world_size=n)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    return tensor[0].item()


def _expect_that_secrets_differ(rank, n, path, secrets):
    with pytest.raises(dmlcomm.CommError, match="DMLCOMM_SECRET"):
        _meet_with_secrets(rank, n, path, secrets)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_need_one_secret(transport, tmp_path):
    env = {"DMLCOMM_TRANSPORT": transport}
    for number, secrets in enumerate([("a", "a"), ("a", "b"), ("a", "")]):
        same = secrets[0] == secrets[1]
        function = _meet_with_secrets if same else _expect_that_secrets_differ
        store = str(tmp_path / str(number))
        results = run_ranks(function, 2, store, secrets, make_group=False, env=env)
        assert results == ([2, 2] if same else [None, None])


def _all_reduce_and_report(rank, n):
    for count in (10, 1_000_000):
        dist.all_reduce(torch.ones(count))
    report("ready")
    threading.Event().wait()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_killed_job_leaves_nothing_in_shared_memory(transport):
    before = set(os.listdir("/dev/shm"))
    with Ranks(_all_reduce_and_report, 3, env={"DMLCOMM_TRANSPORT": transport}) as ranks:
        ranks.wait_for("ready")
        for rank in range(3):
            ranks.send_signal(rank, signal.SIGKILL)
    assert {name for name in set(os.listdir("/dev/shm")) - before if "torch" not in name} == set()
