"""Workers and servers that die, freeze, leave and come back: real processes, real signals."""

import contextlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dmlcomm import PsConnectionError, _core, errors
from dmlcomm.ps import Client
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.worker import connections
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import (
    ServerProcess,
    WorkerProcess,
    addresses_of,
    call_server,
    checkpoint_of,
    command,
    run_workers,
    server_processes,
    servers,
    status_of,
)

COUNT = 10_007

# Adds 1 to every element, as often as the test asks for, and says how the weights are then.
WORKER = f"""
import sys
import numpy as np
from dmlcomm.ps import Client

with Client(sys.argv[1], worker=int(sys.argv[2])) as client:
    client.init("w", np.zeros({COUNT}, np.float32), rule="add", reduce="sum")
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            for _ in range(int(line)):
                weights = client.push_pull("w", np.ones({COUNT}, np.float32))
            print(*sorted(set(weights.tolist())), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
"""

# Is chosen to provide the first values, and then does nothing.
SILENT_PROVIDER = """
import sys
import numpy as np
from dmlcomm.ps import Client
from dmlcomm.ps.worker.model import make_model

client = Client(sys.argv[1], worker=int(sys.argv[2]))
model = make_model(
    "w", np.zeros(5, np.float32), wire="", tables=False, options={}, rule="assign",
    apply="clock", reduce="mean", num_servers=1, replicas=0,
)
print(client._connections.call(0, "CreateModel", model=model.description, elect=True).provide)
sys.stdout.flush()
sys.stdin.read()
"""


def start(client):
    return client.init("w", np.zeros(COUNT, np.float32), rule="add", reduce="sum")


def add_one(client, **options):
    return client.push_pull("w", np.ones(COUNT, np.float32), **options)


# --- workers


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_killed_worker_is_not_waited_for(transport):
    with (
        servers(2, workers=2, transport=transport) as addresses,
        WorkerProcess(WORKER, addresses, "1", DMLCOMM_TRANSPORT=transport) as victim,
        Client(addresses, worker=0, transport=transport) as survivor,
    ):
        start(survivor)
        victim.expect("ready")
        waiting = survivor.push_pull_async("w", np.ones(COUNT, np.float32))
        victim.kill()
        assert set(waiting.result(60).tolist()) == {1.0}
        survivor.barrier()
        for address in addresses.split(","):
            workers = status_of(address)["workers"]
            states = {w["worker"]: (w["alive"], bool(w["lost_reason"])) for w in workers}
            assert states == {0: (True, False), 1: (False, True)}


@pytest.mark.parametrize("replicas", [0, 1])
def test_frozen_worker_is_not_waited_for_and_harms_nobody_when_it_wakes(replicas):
    options = ("--workers", "2", "--replicas", str(replicas))
    with (
        server_processes(2, *options, DMLCOMM_PEER_TIMEOUT_S="1") as processes,
        WorkerProcess(WORKER, addresses_of(processes), "1") as victim,
        Client(addresses_of(processes), worker=0) as survivor,
    ):
        start(survivor)
        victim.expect("ready")
        victim.process.send_signal(signal.SIGSTOP)
        assert set(add_one(survivor).tolist()) == {1.0}
        for process in processes:
            eventually(
                lambda p=process: not status_of(p.address)["workers"][1]["alive"], "the loss"
            )
        victim.process.send_signal(signal.SIGCONT)
        victim.say("2")
        if replicas:  # it stays out
            victim.expect("PsServerLostError")
            assert set(add_one(survivor).tolist()) == {2.0}
        else:  # it connects again, and goes on with the others
            eventually(lambda: all(map(is_back, processes)), "the victim's return")
            for weights in (3.0, 5.0):
                assert set(add_one(survivor).tolist()) == {weights}
            victim.expect("5.0")
        assert survivor.lost_servers == []


def is_back(process):
    # While it registers anew the server has no worker of its number.
    workers = status_of(process.address)["workers"]
    return any(worker["alive"] for worker in workers if worker["worker"] == 1)


def test_killed_worker_comes_back_and_goes_on_with_the_others():
    with servers(2, workers=2) as addresses, Client(addresses, worker=0) as other:
        start(other)
        with WorkerProcess(WORKER, addresses, "1") as first_life:
            first_life.expect("ready")
            first_life.say("1")
            add_one(other)
            first_life.expect("2.0")
        for _ in range(3):  # alone
            add_one(other)
        with WorkerProcess(WORKER, addresses, "1") as second_life:
            second_life.expect("ready")
            second_life.say("2")
            for weights in (7.0, 9.0):
                assert set(add_one(other).tolist()) == {weights}
            second_life.expect("9.0")


@pytest.mark.parametrize("server", [0, 1])
def test_worker_whose_side_of_a_connection_fails_when_it_begins_comes_again(server, monkeypatch):
    """The servers' side has stood, so they give this client of the worker up."""
    fails = [server]
    with servers(2, workers=1, replicas=1) as addresses:

        class Core(_core.PsClient):
            def connect(self, server, *arguments):
                super().connect(server, *arguments)
                if server in fails:
                    fails.remove(server)
                    self.disconnect(server, "this side fails")
                    eventually(lambda: settled(addresses, server), "the worker is given up")
                    raise OSError("this side fails")

        monkeypatch.setattr(_core, "PsClient", Core)
        with Client(addresses, worker=0, timeout_s=DEADLINE_S) as client:
            assert set(client.init("w", np.zeros(1001, np.float32), rule="add")) == {0.0}
            assert set(client.push_pull("w", np.ones(1001, np.float32))) == {1.0}
            assert client.lost_servers == []


def settled(addresses: str, server: int) -> list[int]:
    reply = call_server(addresses, server, "CopyModels", pb.CopyModelsRequest(server=1 - server))
    return [worker.worker for worker in reply.settled]


def test_another_worker_provides_when_the_chosen_one_dies():
    with servers(workers=2) as address, WorkerProcess(SILENT_PROVIDER, address, "0") as chosen:
        chosen.expect("True")
        with Client(address, worker=1) as waiting:
            chosen.kill()
            assert waiting.init("w", np.full(5, 3, np.float32)).tolist() == [3] * 5


# --- servers with replicas


@pytest.mark.parametrize(("num_servers", "victim"), [(2, 0), (2, 1), (3, 1)])
def test_nothing_is_lost_when_a_server_with_a_replica_is_killed(num_servers, victim):
    """Exactly: every acknowledged push of every worker is in every element once."""
    steps = 40
    options = ("--workers", "2", "--replicas", "1")
    with (
        server_processes(num_servers, *options) as processes,
        WorkerProcess(WORKER, addresses_of(processes), "1") as second,
        Client(addresses_of(processes), worker=0) as first,
    ):
        start(first)
        second.expect("ready")
        second.say(str(steps))
        for step in range(steps):
            if step == steps // 3:
                processes[victim].process.kill()
            assert set(add_one(first).tolist()) == {2.0 * (step + 1)}
        second.expect(f"{2.0 * steps}")
        assert first.lost_servers == [victim]
        second.process.stdin.close()  # it leaves
        first.barrier()
        first.init("later", np.full(7, 5, np.float32))
        assert first.pull("later", None).tolist() == [5] * 7


def test_all_workers_get_the_same_bits_although_a_replica_takes_over_within_a_clock():
    steps, count, num_workers = 12, 300_007, 3
    options = ("--workers", str(num_workers), "--replicas", "1")
    with server_processes(2, *options) as processes:

        def train(client):
            client.init("w", np.zeros(count, np.float32), rule="add", reduce="sum")
            random = np.random.default_rng(client.worker)
            hashes = []
            for step in range(steps):
                gradient = random.standard_normal(count, np.float32)
                if step == steps // 2 and client.worker == 0:
                    processes[0].process.kill()
                hashes.append(hash(client.push_pull("w", gradient).tobytes()))
            return hashes

        first, *others = run_workers(train, num_workers, addresses_of(processes))
        assert all(hashes == first for hashes in others)


def test_worker_that_hears_of_a_loss_while_it_asks_goes_on():
    with servers(2, replicas=1) as addresses, Client(addresses, worker=0) as client:
        start(client)
        client._connections.recover([], client._recreate, "a server is lost, or was")
        assert set(add_one(client).tolist()) == {1.0}


def test_workers_meet_although_the_first_server_is_gone():
    with (
        server_processes(2, "--workers", "1", "--replicas", "1") as processes,
        Client(addresses_of(processes), worker=0, timeout_s=30) as client,
    ):
        processes[0].kill()
        client.barrier()
        assert set(start(client).tolist()) == {0.0}
        assert set(add_one(client).tolist()) == {1.0}


def test_workers_meet_elsewhere_when_a_server_with_a_replica_is_started_again():
    options = ("--servers", "2", "--workers", "1", "--replicas", "1")
    with (
        server_processes(2, *options[2:]) as processes,
        Client(addresses_of(processes), worker=0, timeout_s=DEADLINE_S) as client,
    ):
        processes[0].kill()
        with ServerProcess(*options, "--index", "0", "--listen", processes[0].address):
            client.barrier()


def test_worker_that_comes_when_all_others_and_a_server_have_gone_goes_on(monkeypatch):
    with server_processes(2, "--replicas", "1") as processes:
        addresses = addresses_of(processes)
        with Client(addresses, worker=0, timeout_s=DEADLINE_S) as client:
            client.init("w", np.zeros(1000, np.float32), rule="add")
            client.push_pull("w", np.ones(1000, np.float32))
        processes[1].kill()
        monkeypatch.setattr(connections, "SILENCE_S", 0.0)
        with Client(addresses, worker=1, timeout_s=DEADLINE_S) as client:
            assert (client.init("w", np.zeros(1000, np.float32), rule="add") == 1).all()
            assert client.lost_servers == [1]


def test_worker_that_comes_before_the_job_has_begun_finds_no_server_lost(monkeypatch):
    monkeypatch.setattr(connections, "SILENCE_S", 0.0)
    with server_processes(2, "--replicas", "1") as processes:
        processes[1].kill()
        with pytest.raises(PsConnectionError):
            Client(addresses_of(processes), worker=0, connect_timeout_s=1.0)
        assert status_of(processes[0].address).get("lost_servers", []) == []


def test_worker_that_comes_after_a_loss_needs_not_wait():
    with server_processes(2, "--workers", "1", "--replicas", "1") as processes:
        addresses = addresses_of(processes)
        with Client(addresses, worker=0) as first:
            start(first)
            processes[0].kill()
            add_one(first)
            with Client(addresses, worker=1) as late:
                assert set(start(late).tolist()) == {1.0}


def test_servers_hear_of_a_loss_from_a_worker_that_then_does_nothing():
    with (
        server_processes(3, "--workers", "1", "--replicas", "1") as processes,
        Client(addresses_of(processes), worker=0) as client,
    ):
        start(client)
        processes[0].kill()
        client.push("w", np.ones(COUNT, np.float32))
        for process in processes[1:]:
            eventually(lambda p=process: status_of(p.address)["lost_servers"] == [0], "the news")
        assert client.lost_servers == [0]


# --- servers with checkpoints


def test_killed_server_resumes_its_checkpoint_and_the_client_reconnects(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "2")
    with (
        server_processes(2, *options) as processes,
        Client(addresses_of(processes), worker=0) as client,
    ):
        start(client)
        for _ in range(5):
            add_one(client)
        victim = processes[1]
        eventually(lambda: checkpoint_of(victim.address).get("w"), "a checkpoint")
        victim.kill()
        # Another one may have been written since; names of files end in the clock.
        newest = max((tmp_path / "server-1").glob("*.ckpt"))
        clock = int(newest.stem.rpartition("-")[2])
        again = ("--servers", "2", "--index", "1", "--listen", victim.address)
        with ServerProcess(*again, *options) as restarted:
            weights = add_one(client)
            # Server 0 has all six; server 1 those up to its checkpoint, and the one since.
            assert sorted(set(weights.tolist())) == [clock + 1.0, 6.0]
            assert 5 - clock <= 3
            assert f"restored at clock {clock}" in restarted.terminate()[1]


def test_job_goes_on_from_its_checkpoints(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with (
        server_processes(2, *options) as processes,
        Client(addresses_of(processes), worker=0) as client,
    ):
        client.init("m", [np.zeros(1001, np.float32)], rule="sgd", lr=0.5, momentum=0.5)
        client.push_pull("m", [np.ones(1001, np.float32)])
        for process in processes:
            eventually(lambda p=process: checkpoint_of(p.address).get("m") == 1, "a checkpoint")
            assert process.terminate()[0] == 0
    with (
        server_processes(2, *options) as processes,
        Client(addresses_of(processes), worker=0) as client,
    ):
        unused = [np.full(1001, 9, np.float32)]
        (weights,) = client.init("m", unused, rule="sgd", lr=0.5, momentum=0.5)
        assert set(weights.tolist()) == {-0.5}
        assert client.clock_of("m") == 1
        # With its momentum: 1.5 times the gradient.
        (weights,) = client.push_pull("m", [np.ones(1001, np.float32)])
        assert set(weights.tolist()) == {-1.25}
        with pytest.raises(errors.PsModelError, match=r"lr=0.5.*lr=0.1"):
            client.init("m", unused, rule="sgd", lr=0.1, momentum=0.5)


def enter_barrier(pool, client, monkeypatch):
    """The future of its barrier, whose first call is under way."""
    called, call = threading.Event(), client._connections.call

    def call_and_tell(server, name, *arguments, **options):
        if name == "Barrier":
            called.set()
        return call(server, name, *arguments, **options)

    monkeypatch.setattr(client._connections, "call", call_and_tell)
    future = pool.submit(client.barrier)
    assert called.wait(DEADLINE_S)
    return future


@pytest.mark.parametrize("num_servers", [1, 2])
def test_barrier_survives_a_restart_of_the_first_server(tmp_path, monkeypatch, num_servers):
    options = ("--workers", "2", "--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with (
        ThreadPoolExecutor(1) as pool,
        server_processes(num_servers, *options) as processes,
        Client(addresses_of(processes), worker=0, timeout_s=DEADLINE_S) as waits,
        Client(addresses_of(processes), worker=1, timeout_s=DEADLINE_S) as comes_later,
    ):
        both, victim = (waits, comes_later), processes[0]
        started = pool.submit(start, waits)
        start(comes_later)
        started.result(DEADLINE_S)
        for client in both:
            client.push("w", np.ones(COUNT, np.float32))
            client.clock()
        assert set(waits.pull("w").tolist()) == {2.0}
        eventually(lambda: checkpoint_of(victim.address).get("w") == 1, "a checkpoint")
        barrier = enter_barrier(pool, waits, monkeypatch)
        victim.kill()
        place = ("--servers", str(num_servers), "--index", "0", "--listen", victim.address)
        with ServerProcess(*place, *options):
            comes_later.barrier()
            barrier.result(DEADLINE_S)
            for client in both:
                client.push("w", np.ones(COUNT, np.float32))
                client.clock()
            for client in both:
                assert set(client.pull("w").tolist()) == {4.0}
            for client in both:
                client.close()


def test_barrier_names_a_first_server_that_does_not_come_back(monkeypatch):
    with (
        ThreadPoolExecutor(1) as pool,
        server_processes(1, "--workers", "2") as (server,),
        Client(server.address, worker=0, reconnect_timeout_s=0.5) as client,
    ):
        barrier = enter_barrier(pool, client, monkeypatch)
        server.kill()
        with pytest.raises(errors.PsServerLostError, match="--checkpoint") as lost:
            barrier.result(DEADLINE_S)
        assert lost.value.servers == [0]


def write_checkpoints(tmp_path):
    """Two of one model; their files, the older first."""
    with (
        ServerProcess("--checkpoint", str(tmp_path), "--checkpoint-every", "1") as server,
        Client(server.address, worker=0) as client,
    ):
        start(client)
        for clock in (1, 2, 3):
            add_one(client)
            eventually(lambda c=clock: checkpoint_of(server.address).get("w") == c, "a checkpoint")
    return sorted(tmp_path.rglob("*.ckpt"))


def test_damaged_checkpoint_is_named_and_the_older_one_used(tmp_path):
    old, new = write_checkpoints(tmp_path)
    data = bytearray(new.read_bytes())
    data[-100] ^= 1
    new.write_bytes(data)
    with (
        ServerProcess("--checkpoint", str(tmp_path)) as server,
        Client(server.address, worker=0) as client,
    ):
        assert set(start(client).tolist()) == {2.0}
        log = server.terminate()[1]
    assert f"{new} is damaged in array 0 of shard 0" in log
    assert f"{old} is used instead" in log
    old.write_bytes(b"")
    result = command("ps", "serve", "--checkpoint", str(tmp_path))
    assert result.returncode == 1
    assert str(old) in result.stderr
    assert "move the files away" in result.stderr


# Pushes ones for ever.
PUSHING = f"""
import sys
import numpy as np
from dmlcomm.ps import Client

with Client(sys.argv[1], worker=int(sys.argv[2])) as client:
    client.init("w", np.zeros({COUNT}, np.float32), rule="add", reduce="sum")
    for step in range(1 << 40):
        client.push_pull("w", np.ones({COUNT}, np.float32))
        if step == 20:
            print("pushing", flush=True)
"""


def test_servers_that_are_stopped_together_go_on_from_one_clock(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "100000")
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(server_processes(2, "--workers", "2", *options))
        workers = [
            stack.enter_context(WorkerProcess(PUSHING, addresses_of(processes), number))
            for number in ("0", "1")
        ]
        for worker in workers:
            worker.expect("pushing")
        for process in processes:
            process.process.terminate()
        logs = [process.process.communicate(timeout=DEADLINE_S)[1] for process in processes]
    assert [process.process.returncode for process in processes] == [0, 0], logs
    with (
        server_processes(2, *options) as processes,
        Client(addresses_of(processes), worker=0) as client,
    ):
        weights = start(client)
        clock = client.clock_of("w")
        assert clock > 20
        assert set(weights.tolist()) == {2.0 * clock}


def test_servers_with_other_newest_checkpoints_go_on_from_the_newest_that_all_have(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with (
        server_processes(2, *options) as processes,
        Client(addresses_of(processes), worker=0) as client,
    ):
        start(client)
        for clock in (1, 2, 3):
            add_one(client)
            for process in processes:
                eventually(lambda p=process, c=clock: checkpoint_of(p.address).get("w") == c, "one")
        for process in processes:
            process.kill()
    max((tmp_path / "server-1").glob("*.ckpt")).unlink()
    with server_processes(2, *options) as processes:
        with Client(addresses_of(processes), worker=0) as client:
            assert set(start(client).tolist()) == {2.0}
            assert set(add_one(client).tolist()) == {3.0}
        log = processes[0].kill()
        processes[1].kill()
    assert 'model "w": back from clock 3 to 2' in log
    # What nobody has in common is told; parts of different clocks are what somebody asks for.
    for path in (tmp_path / "server-1").glob("*.ckpt"):
        path.unlink()
    with server_processes(2, *options) as processes:
        nothing = r"server 0: .*2; server 1: none"
        with pytest.raises(errors.PsCheckpointError, match=nothing):
            Client(addresses_of(processes), worker=0)


def test_checkpoint_of_another_job_is_refused(tmp_path):
    write_checkpoints(tmp_path)
    result = command("ps", "serve", "--checkpoint", str(tmp_path), "--servers", "2")
    assert result.returncode == 1
    assert "num_servers is 1, expected 2" in result.stderr


# --- servers with neither


def test_server_that_does_not_come_back_is_named():
    with (
        server_processes(2) as processes,
        Client(addresses_of(processes), worker=0, reconnect_timeout_s=1.0) as client,
    ):
        start(client)
        processes[1].kill()
        with pytest.raises(errors.PsServerLostError, match="--replicas") as lost:
            add_one(client)
        assert lost.value.servers == [1]
        assert processes[1].address in str(lost.value)


def test_server_that_comes_back_empty_is_no_silent_loss():
    with server_processes(2) as processes, Client(addresses_of(processes), worker=0) as client:
        start(client)
        victim = processes[1]
        victim.kill()
        with (
            ServerProcess("--servers", "2", "--index", "1", "--listen", victim.address),
            pytest.raises(errors.PsServerLostError, match='without its part of model "w"'),
        ):
            add_one(client)


def test_operations_behind_futures_survive_a_restart(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    with ServerProcess(*options) as first, Client(first.address, worker=0) as client:
        start(client)
        add_one(client)
        eventually(lambda: checkpoint_of(first.address).get("w") == 1, "a checkpoint")
        first.kill()
        futures = [client.push_pull_async("w", np.ones(COUNT, np.float32)) for _ in range(3)]
        with ServerProcess("--listen", first.address, *options):
            weights = [sorted(set(future.result(60).tolist())) for future in futures]
            assert weights == [[2.0], [3.0], [4.0]]
