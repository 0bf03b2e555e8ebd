"""Servers that are started again: who connects again by itself, and whom a server waits for."""

import contextlib
import itertools
import logging
import os
import resource
import signal
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dmlcomm import errors
from dmlcomm.ps import Client
from dmlcomm.ps.server import background, checkpoint
from dmlcomm.ps.server.membership import Membership
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import (
    ServerProcess,
    WorkerProcess,
    addresses_of,
    checkpoint_of,
    command,
    server_processes,
    servers,
    status_of,
)

COUNT = 10_007
ONES = np.ones(COUNT, np.float32)


def zeros():
    return np.zeros(COUNT, np.float32)


def init(client, model="w"):
    return client.init(model, zeros(), rule="add", reduce="sum")


def restarted(process, num_servers, index, *options):
    """The same server again, at its address."""
    process.kill()
    place = ("--servers", str(num_servers), "--index", str(index), "--listen", process.address)
    return ServerProcess(*place, *options)


def before_call(monkeypatch, client, name, action, number=1):
    """Does something once, right before the client's number-th call of this name."""
    call, left = client._connections.call, [action]
    numbers = itertools.count(1)

    def call_after_action(server, called, *arguments, **fields):
        if called == name and next(numbers) == number:
            left.pop()()
        return call(server, called, *arguments, **fields)

    monkeypatch.setattr(client._connections, "call", call_after_action)
    return left


# --- init


@pytest.mark.parametrize(("num_servers", "victim"), [(1, 0), (2, 0), (2, 1)])
def test_init_connects_again_to_a_server_that_has_forgotten_the_worker(num_servers, victim):
    with (
        server_processes(num_servers) as processes,
        Client(addresses_of(processes), worker=0, timeout_s=DEADLINE_S) as client,
        restarted(processes[victim], num_servers, victim),
    ):
        assert set(init(client).tolist()) == {0.0}
        assert set(client.push_pull("w", ONES).tolist()) == {1.0}


def test_init_waits_for_a_server_that_is_gone(monkeypatch):
    with (
        ThreadPoolExecutor(1) as pool,
        server_processes(1) as (server,),
        Client(server.address, worker=0, timeout_s=DEADLINE_S) as client,
    ):
        server.kill()
        asked = []
        before_call(monkeypatch, client, "CreateModel", lambda: asked.append(True))
        started = pool.submit(init, client)
        eventually(lambda: asked, "the first call")
        with ServerProcess("--listen", server.address):
            assert set(started.result(DEADLINE_S).tolist()) == {0.0}


def test_first_values_are_not_put_together_from_two_times():
    with server_processes(2) as processes:
        servers = addresses_of(processes)
        with Client(servers, worker=0, timeout_s=DEADLINE_S) as client:
            init(client)
        with (
            restarted(processes[0], 2, 0),
            Client(servers, worker=0, timeout_s=DEADLINE_S) as client,
            pytest.raises(errors.PsServerLostError, match="server 0 was started again without"),
        ):
            init(client)


def test_init_names_a_server_that_does_not_come_back():
    with (
        server_processes(2) as processes,
        Client(addresses_of(processes), worker=0, reconnect_timeout_s=0.5) as client,
    ):
        processes[1].kill()
        with pytest.raises(errors.PsServerLostError, match="did not come back within") as lost:
            init(client)
        assert lost.value.servers == [1]
        assert processes[1].address in str(lost.value)


def test_init_does_not_connect_again_where_that_is_switched_off():
    with (
        server_processes(1) as (server,),
        Client(server.address, worker=0, reconnect_timeout_s=0) as client,
        restarted(server, 1, 0),
        pytest.raises(errors.PsServerLostError, match="does not connect again"),
    ):
        init(client)


def test_init_of_another_model_goes_on_with_the_first_from_its_checkpoint(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with (
        server_processes(2, *options) as processes,
        Client(addresses_of(processes), worker=0, timeout_s=DEADLINE_S) as client,
    ):
        init(client)
        client.push_pull("w", ONES)
        for process in processes:
            eventually(lambda p=process: checkpoint_of(p.address).get("w") == 1, "a checkpoint")
        with restarted(processes[0], 2, 0, *options):
            assert set(init(client, "later").tolist()) == {0.0}
            assert set(client.push_pull("w", ONES).tolist()) == {2.0}
            assert set(client.push_pull("later", ONES).tolist()) == {1.0}


def test_init_survives_a_server_that_dies_again_while_it_is_told_of_the_models(
    tmp_path, monkeypatch
):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with (
        server_processes(1, *options) as (server,),
        Client(server.address, worker=0, timeout_s=DEADLINE_S) as client,
        contextlib.ExitStack() as stack,
    ):
        init(client)
        client.push_pull("w", ONES)
        eventually(lambda: checkpoint_of(server.address).get("w") == 1, "a checkpoint")
        second = stack.enter_context(restarted(server, 1, 0, *options))

        def restart_again():
            stack.enter_context(restarted(second, 1, 0, *options))

        # The first call finds that the session is unknown, the next one makes "w" known again.
        left = before_call(monkeypatch, client, "CreateModel", restart_again, number=2)
        assert set(init(client, "later").tolist()) == {0.0}
        assert left == []
        assert set(client.push_pull("w", ONES).tolist()) == {2.0}


def test_init_of_another_model_tells_that_the_first_is_lost():
    with (
        server_processes(1) as (server,),
        Client(server.address, worker=0, timeout_s=DEADLINE_S) as client,
    ):
        init(client)
        with (
            restarted(server, 1, 0),
            pytest.raises(errors.PsServerLostError, match='without its part of model "w"'),
        ):
            init(client, "later")


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("call", ["CreateModel", "SealModel"])
def test_first_values_survive_a_restart_at_any_moment(monkeypatch, victim, call):
    with (
        server_processes(2) as processes,
        Client(addresses_of(processes), worker=0, timeout_s=DEADLINE_S) as client,
        contextlib.ExitStack() as stack,
    ):

        def restart():
            stack.enter_context(restarted(processes[victim], 2, victim))

        left = before_call(monkeypatch, client, call, restart)
        given = np.arange(COUNT, dtype=np.float32)
        assert client.init("w", given.copy()).tolist() == given.tolist()
        assert client.push_pull("w", 2 * given).tolist() == (2 * given).tolist()
        assert left == []


@pytest.mark.parametrize("victim", [0, 1])
def test_first_values_are_sent_again_when_a_server_is_restarted_meanwhile(monkeypatch, victim):
    """The data connection breaks, and no call of the control plane has told of it."""
    with (
        server_processes(2) as processes,
        Client(addresses_of(processes), worker=0, timeout_s=DEADLINE_S) as client,
        contextlib.ExitStack() as stack,
    ):
        run, left = client._operations.run, [processes[victim]]

        def run_after_restart(what, *arguments, **named):
            if left:
                stack.enter_context(restarted(left.pop(), 2, victim))
            return run(what, *arguments, **named)

        monkeypatch.setattr(client._operations, "run", run_after_restart)
        given = np.arange(COUNT, dtype=np.float32)
        assert client.init("w", given.copy()).tolist() == given.tolist()
        assert left == []


@contextlib.contextmanager
def server_of_two_workers(*options):
    """The server, both clients, and threads for what they wait in."""
    with (
        ThreadPoolExecutor(2) as pool,
        server_processes(1, "--workers", "2", *options) as (server,),
        Client(server.address, worker=0, timeout_s=DEADLINE_S) as first,
        Client(server.address, worker=1, timeout_s=DEADLINE_S) as second,
    ):
        yield server, first, second, pool


def test_provider_leaves_it_to_another_worker_that_a_restarted_server_has_chosen(monkeypatch):
    with server_of_two_workers() as (server, first, second, pool), contextlib.ExitStack() as stack:
        run, left = first._operations.run, [server]

        def run_after_restart(what, *arguments, **named):
            if left:
                stack.enter_context(restarted(left.pop(), 1, 0, "--workers", "2"))
                # It comes while the server knows of no provider.
                others = pool.submit(second.init, "w", 2 * ONES)
                assert set(others.result(DEADLINE_S).tolist()) == {2.0}
            return run(what, *arguments, **named)

        monkeypatch.setattr(first._operations, "run", run_after_restart)
        assert set(first.init("w", 1 * ONES).tolist()) == {2.0}
        assert set(second.pull("w", None).tolist()) == {2.0}


class StoppedError(Exception):
    """A provider that goes no further."""


def stop(*_):
    raise StoppedError


def test_worker_that_waits_for_first_values_connects_again_and_provides_them(monkeypatch):
    with server_of_two_workers() as (server, chosen, waits, pool):
        monkeypatch.setattr(chosen._creation, "_provide", stop)
        with pytest.raises(StoppedError):
            init(chosen)
        asked = []
        before_call(monkeypatch, waits, "WaitModel", lambda: asked.append(True))
        started = pool.submit(waits.init, "w", 3 * ONES, rule="add", reduce="sum")
        eventually(lambda: asked, "the wait for first values")
        with restarted(server, 1, 0, "--workers", "2"):
            assert set(started.result(DEADLINE_S).tolist()) == {3.0}


def test_first_values_of_two_workers_are_not_put_together():
    """The first provider dies when one of two servers has all of its values."""
    with (
        ThreadPoolExecutor(1) as pool,
        server_processes(2, "--workers", "2") as processes,
        Client(addresses_of(processes), worker=0, timeout_s=DEADLINE_S) as dies,
        Client(addresses_of(processes), worker=1, timeout_s=DEADLINE_S) as waits,
        pytest.MonkeyPatch.context() as patched,
    ):
        before_call(patched, dies, "SealModel", stop, number=2)
        with pytest.raises(StoppedError):
            init(dies)
        asked = []
        before_call(patched, waits, "WaitModel", lambda: asked.append(True))
        started = pool.submit(init, waits)
        eventually(lambda: asked, "the wait for first values")
        dies.close(wait=False)
        with pytest.raises(errors.PsServerLostError, match="server 1 has first values of another"):
            started.result(DEADLINE_S)


# --- barrier


def members_of(num_workers, restored=()):
    """A server's, whose workers are alive as long as they are registered."""
    members = Membership(num_workers, lambda: set(range(num_workers)))
    members.restore(dict(restored), workers=[])
    return members


def test_restored_server_waits_for_the_clients_that_were_alive():
    members = members_of(4, {0: 70, 2: 72})
    assert members.num_missing() == 4  # nobody has shown that the job goes on
    members.register(2, incarnation=72, host_name="a")
    assert members.num_missing() == 1
    members.register(0, incarnation=99, host_name="b")  # started again meanwhile
    assert members.num_missing() == 0


def test_restored_server_waits_for_all_workers_of_a_job_that_begins_anew():
    members = members_of(3, {0: 70, 1: 71})
    for worker, missing in enumerate((2, 1, 0)):
        members.register(worker, incarnation=worker + 1, host_name="a")
        assert members.num_missing() == missing


def test_restored_workers_that_do_not_come_are_given_up_once():
    members = Membership(3, lambda: {0, 1, 2}, rejoin_timeout_s=30)
    members.restore({0: 70, 1: 71}, workers=[0, 1, 2])
    assert members.take_overdue() == set()  # none has come: the job may not have begun
    members.register(0, incarnation=70, host_name="a")
    assert members.take_overdue() == set()
    members.rejoin_timeout_s = 0
    assert members.take_overdue() == {1, 2}
    assert members.num_missing() == 0
    assert members.take_overdue() == set()


def test_job_that_begins_anew_gives_up_workers_that_it_does_not_have():
    members = Membership(2, lambda: {0, 1}, rejoin_timeout_s=0)
    members.restore({0: 70, 1: 71, 2: 72}, workers=[0, 1, 2])
    members.register(0, incarnation=1, host_name="a")
    assert members.take_overdue() == {2}
    assert members.num_missing() == 1
    members.register(1, incarnation=2, host_name="a")
    assert members.take_overdue() == set()


def test_incarnations_are_those_of_live_workers():
    alive = {0, 1}
    members = Membership(3, lambda: alive)
    sessions = [members.register(worker, 10 + worker, "a") for worker in range(3)]
    for session in sessions:
        session.joined = True
    members.end(sessions[0], "has left")
    assert members.incarnations() == {1: 11}


def barrier_of_all(pool, clients):
    for future in [pool.submit(client.barrier) for client in clients]:
        future.result(DEADLINE_S)


def test_barrier_after_a_restart_waits_for_the_living_only(tmp_path):
    options = ("--workers", "3", "--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with (
        ThreadPoolExecutor(3) as pool,
        server_processes(1, *options) as (server,),
        Client(server.address, worker=0, timeout_s=DEADLINE_S) as first,
        Client(server.address, worker=1, timeout_s=DEADLINE_S) as second,
    ):
        with Client(server.address, worker=2, timeout_s=DEADLINE_S) as leaves:
            for future in [pool.submit(init, client) for client in (first, second, leaves)]:
                future.result(DEADLINE_S)
            barrier_of_all(pool, (first, second, leaves))
        # Without worker 2, which the checkpoint does not have any more.
        for future in [pool.submit(c.push_pull, "w", ONES) for c in (first, second)]:
            future.result(DEADLINE_S)
        eventually(lambda: checkpoint_of(server.address).get("w") == 1, "a checkpoint")
        with restarted(server, 1, 0, *options):
            barrier_of_all(pool, (first, second))
            assert set(first.pull("w", None).tolist()) == {2.0}
            for client in (first, second):
                client.close()


def test_workers_that_died_with_the_server_hold_nobody_up(tmp_path):
    options = ("--workers", "2", "--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with server_of_two_workers(*options) as (server, stays, dies, pool):
        for future in [pool.submit(init, dies), pool.submit(init, stays)]:
            future.result(DEADLINE_S)
        for future in [pool.submit(client.push_pull, "w", ONES) for client in (stays, dies)]:
            future.result(DEADLINE_S)
        eventually(lambda: checkpoint_of(server.address).get("w") == 1, "a checkpoint")
        server.kill()
        dies.close(wait=False)
        with restarted(server, 1, 0, *options, "--rejoin-timeout", "0.5") as again:
            assert set(stays.push_pull("w", ONES).tolist()) == {3.0}
            stays.barrier()
            stays.close()
            assert "worker 1 was there when the checkpoint was written" in again.terminate()[1]


# --- what is logged


def test_restoring_says_how_far_it_is_within_a_model(tmp_path, monkeypatch, caplog):
    options = {"checkpoint": tmp_path, "checkpoint_every": 1}
    with servers(**options) as address, Client(address, worker=0) as client:
        init(client)
        client.push_pull("w", ONES)
        eventually(lambda: checkpoint_of(address).get("w") == 1, "a checkpoint")
    monkeypatch.setattr(background, "PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", COUNT)
    with caplog.at_level(logging.WARNING, logger="dmlcomm"), servers(**options) as address:
        pass
    lines = [r.getMessage() for r in caplog.records if "restoring model 1 of 1" in r.getMessage()]
    shares = [line.split(":")[1].split()[0] for line in lines]
    assert list(dict.fromkeys(shares)) == ["25", "50", "75", "100"]
    push_bytes = 32  # there is one that the worker may repeat
    assert f"({COUNT} of {4 * COUNT + push_bytes} bytes)" in lines[0]
    assert str(next(tmp_path.rglob("*.ckpt"))) in lines[0]


# --- what is in the last checkpoint


def test_checkpoint_has_clocks_whose_values_nobody_asked_for(tmp_path):
    options = {"checkpoint": tmp_path, "checkpoint_every": 2}
    with servers(**options) as address:
        with Client(address, worker=0) as client:
            init(client)
            for _ in range(4):
                client.push("w", ONES)
                client.clock()
        eventually(lambda: checkpoint_of(address).get("w") == 4, "a checkpoint")


def test_server_that_is_stopped_writes_the_last_clock(tmp_path, monkeypatch):
    stopping = threading.Event()
    write, close = checkpoint.CheckpointDirectory.write, background.Checkpoints.close

    def write_when_stopping(self, *arguments):
        assert stopping.wait(DEADLINE_S)
        return write(self, *arguments)

    def close_and_tell(self):
        self._stop.set()
        stopping.set()
        close(self)

    monkeypatch.setattr(checkpoint.CheckpointDirectory, "write", write_when_stopping)
    monkeypatch.setattr(background.Checkpoints, "close", close_and_tell)
    options = {"checkpoint": tmp_path, "checkpoint_every": 1}
    with servers(**options) as address, Client(address, worker=0) as client:
        init(client)
        for _ in range(3):
            client.push_pull("w", ONES)
    with servers(**options) as address, Client(address, worker=0) as client:
        assert set(init(client).tolist()) == {3.0}


# --- a disk that is full


def test_checkpoint_that_cannot_be_written_leaves_the_others_and_the_next_is_tried(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1", "--metrics-port", "0")
    with (
        ServerProcess(*options) as server,
        Client(server.address, worker=0, timeout_s=DEADLINE_S) as client,
    ):

        def checkpoint_state():
            """What the server says of the model's checkpoint: nothing before the first is noted."""
            states = status_of(server.address)["checkpoints"]
            return states[0] if states else {"clock": None}

        def files():
            return sorted(int(path.stem[-12:]) for path in tmp_path.rglob("*-clock-*"))

        init(client)
        client.push_pull("w", ONES)
        eventually(lambda: files() == [1] and checkpoint_state()["clock"] == 1, "a checkpoint")
        server.limit_files(1000)
        client.push_pull("w", ONES)
        eventually(lambda: checkpoint_state()["failures"] == 1, "a failure")
        assert "File too large" in checkpoint_state()["failure"]
        assert "cannot be written" in command("ps", "status", server.address).stdout
        assert files() == [1]
        url = f"http://127.0.0.1:{server.line.rpartition(' ')[2]}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            assert 'dmlcomm_ps_checkpoint_failures_total{model="w"} 1.0' in answer.read().decode()
        server.limit_files(resource.RLIM_INFINITY)
        client.push_pull("w", ONES)
        eventually(lambda: checkpoint_state()["clock"] == 3, "the next checkpoint")
        assert checkpoint_state()["failure"] == ""
        assert files() == [1, 3]


def test_thread_that_writes_checkpoints_survives_any_exception(tmp_path, monkeypatch):
    write, failures = checkpoint.CheckpointDirectory.write, [ValueError("not of this world")]

    def write_or_fail(self, *arguments):
        if failures:
            raise failures.pop()
        return write(self, *arguments)

    monkeypatch.setattr(checkpoint.CheckpointDirectory, "write", write_or_fail)
    options = {"checkpoint": tmp_path, "checkpoint_every": 1}
    with servers(**options) as address, Client(address, worker=0) as client:
        init(client)
        client.push_pull("w", ONES)
        eventually(lambda: not failures, "the exception")
        client.push_pull("w", ONES)
        eventually(lambda: checkpoint_of(address).get("w") == 2, "a checkpoint")


# --- pushes that are repeated

# Stops the worker in the first update: the answer cannot reach it.
STOPPING_RULE = """
import os, signal

def add(weights, gradient, state, step):
    if step == 1:
        pid = int(os.environ["TEST_WORKER_PID"])
        os.kill(pid, signal.SIGSTOP)
        while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "T":
            pass
    weights += gradient
"""

# More than is sent unasked, and a single piece.
PUSHES_TWICE = """
import sys
import numpy as np
from dmlcomm.ps import Client

address = sys.stdin.readline().strip()
with Client(address, worker=0) as client:
    client.init("w", np.zeros(50_000, np.float32), rule="python", reduce="sum")
    for _ in range(2):
        print(sorted(set(client.push_pull("w", np.ones(50_000, np.float32)).tolist())), flush=True)
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_push_whose_answer_is_lost_is_not_applied_again_after_a_restore(tmp_path, transport):
    (tmp_path / "stopping_rule.py").write_text(STOPPING_RULE)
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1", "--rule")
    with WorkerProcess(PUSHES_TWICE, DMLCOMM_TRANSPORT=transport) as worker:
        environment = {
            "PYTHONPATH": str(tmp_path),
            "TEST_WORKER_PID": str(worker.process.pid),
            "DMLCOMM_TRANSPORT": transport,
        }
        rule = "stopping_rule:add"
        with ServerProcess(*options, rule, **environment) as server:
            worker.say(server.address)
            eventually(lambda: checkpoint_of(server.address).get("w") == 1, "a checkpoint")
            server.kill()
            again = ("--listen", server.address, *options, rule)
            with ServerProcess(*again, **environment):
                os.kill(worker.process.pid, signal.SIGCONT)
                assert worker.next_line() == "[1.0]"
                assert worker.next_line() == "[2.0]"
