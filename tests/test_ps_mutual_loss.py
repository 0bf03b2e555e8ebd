"""Two servers that have each found the other lost: one gives way, and both are used again."""

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dmlcomm import errors
from dmlcomm.ps import Client
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.server import refill
from dmlcomm.ps.server.server import Server, ServerOptions
from dmlcomm.ps.server.status import ServerView
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import call_server, run_threads, servers, status_of

COUNT = 1001
ONES = np.ones(COUNT, np.float32)
RULE = {"rule": "add", "reduce": "sum"}


@pytest.fixture
def settling(monkeypatch) -> threading.Event:
    """Servers ask each other nothing until it is set."""
    event = threading.Event()
    look = refill.Refill._look

    def look_then(self):
        if event.is_set():
            look(self)

    monkeypatch.setattr(refill.Refill, "_look", look_then)
    monkeypatch.setattr(refill, "RETURN_INTERVAL_S", 0.02)
    return event


@pytest.fixture
def asked(monkeypatch) -> threading.Semaphore:
    """Released for each question how a server is."""
    semaphore = threading.Semaphore(0)
    health = ServerView.health
    monkeypatch.setattr(ServerView, "health", lambda self: (semaphore.release(), health(self))[1])
    return semaphore


def await_questions(asked: threading.Semaphore, count: int) -> None:
    while asked.acquire(blocking=False):
        pass
    for _ in range(count):
        assert asked.acquire(timeout=DEADLINE_S)


@contextlib.contextmanager
def job() -> Iterator[tuple[str, Client]]:
    with (
        servers(2, workers=1, replicas=1) as addresses,
        Client(addresses, worker=0, timeout_s=DEADLINE_S) as client,
    ):
        client.init("w", 0 * ONES, **RULE)
        client.push_pull("w", ONES)
        yield addresses, client


def lose(addresses: str, server: int, by: int) -> None:
    """As if it had not answered, or had been started again."""
    request = pb.VerdictRequest(about=server, instance="another one", life=0)
    assert call_server(addresses, by, "Verdict", request).lost


def await_return(addresses: str, workers: int) -> None:
    def is_back(server: int) -> bool:
        state = status_of(addresses.split(",")[server])
        alive = sum(w["alive"] for w in state["workers"])
        is_filling = call_server(addresses, server, "Health", pb.HealthRequest()).is_filling
        return state["lost_servers"] == [] and alive == workers and not is_filling

    eventually(
        lambda: all(map(is_back, (0, 1))),
        f"both servers have all and are used by {workers} workers",
    )


@pytest.mark.parametrize("used", [0, 1])
def test_server_that_still_has_a_worker_goes_on_and_fills_the_other_one(used, settling):
    with job() as (addresses, client):
        lose(addresses, 1 - used, by=used)
        client.push_pull("w", ONES)
        assert client.lost_servers == [1 - used]
        lose(addresses, used, by=1 - used)
        settling.set()
        client.push_pull("w", ONES)
        await_return(addresses, workers=1)
        assert set(client.push_pull("w", ONES)) == {4.0}
        lose(addresses, used, by=1 - used)  # the other one has all
        assert set(client.push_pull("w", ONES)) == {5.0}


@pytest.mark.parametrize("used", [0, 1])
def test_server_with_more_workers_goes_on_and_those_of_the_other_one_end(used, settling):
    with contextlib.ExitStack() as stack:
        addresses = stack.enter_context(servers(2, workers=3, replicas=1))
        clients = [
            stack.enter_context(Client(addresses, worker=worker, timeout_s=DEADLINE_S))
            for worker in range(3)
        ]

        def push(workers: int) -> list[float]:
            values = run_threads(lambda worker: clients[worker].push_pull("w", ONES), workers)
            return sorted({value for one in values for value in one})

        run_threads(lambda worker: clients[worker].init("w", 0 * ONES, **RULE), 3)
        assert push(3) == [3.0]
        for server in (0, 1):
            lose(addresses, server, by=1 - server)
        for client, server in zip(clients, (used, used, 1 - used), strict=True):
            client._connections.core.confirm_lost(1 - server, 0)
        ends = threading.Thread(target=push_until_lost, args=(clients[2],))
        ends.start()
        assert push(2) == [5.0]
        settling.set()
        await_return(addresses, workers=2)
        ends.join(DEADLINE_S)
        assert not ends.is_alive()
        assert push(2) == [7.0]
        lose(addresses, used, by=1 - used)  # the other one has all
        assert push(2) == [9.0]


def push_until_lost(client: Client) -> None:
    with contextlib.suppress(errors.PsServerLostError):
        while True:
            client.push_pull("w", ONES)


@pytest.mark.parametrize("used", [0, 1])
def test_without_workers_the_server_that_has_come_further_goes_on(used, settling):
    with job() as (addresses, client):
        lose(addresses, 1 - used, by=used)
        client.push_pull("w", ONES)
        lose(addresses, used, by=1 - used)
        client.close()
        settling.set()
        with Client(addresses, worker=0, timeout_s=DEADLINE_S) as client:
            assert set(client.init("w", 0 * ONES, **RULE)) == {2.0}
            await_return(addresses, workers=1)
            assert set(client.push_pull("w", ONES)) == {3.0}


@pytest.mark.parametrize("used", [0, 1])
def test_servers_that_a_worker_has_told_of_both_losses_are_used_again(used, settling):
    with job() as (addresses, client):
        lose(addresses, 1 - used, by=used)
        client.push_pull("w", ONES)
        lose(addresses, used, by=1 - used)
        for server in (0, 1):  # as one that both servers know would
            tell(addresses, server, [1, 1])
        with pytest.raises(errors.PsServerLostError):
            client.push_pull("w", ONES)
        settling.set()
        with Client(addresses, worker=0, timeout_s=DEADLINE_S) as again:
            assert set(again.init("w", 0 * ONES, **RULE)) == {2.0}
            await_return(addresses, workers=1)
            assert set(again.push_pull("w", ONES)) == {3.0}


def tell(addresses: str, server: int, lives: list[int]) -> None:
    answer = call_server(addresses, server, "ComeBack", pb.ComeBackRequest(lives=lives))
    assert list(answer.lives) == lives


def test_worker_that_begins_waits_until_servers_have_settled_and_tells_neither(settling, asked):
    with job() as (addresses, client):
        client.close()
        for server in (0, 1):
            lose(addresses, server, by=1 - server)
        weights = []

        def begin() -> None:
            with Client(addresses, worker=0, timeout_s=DEADLINE_S) as again:
                weights.append(again.init("w", 0 * ONES, **RULE))

        worker = threading.Thread(target=begin)
        worker.start()
        await_questions(asked, 4)  # to both, twice
        settling.set()
        worker.join(DEADLINE_S)
        assert set(weights[0]) == {1.0}
        await_return(addresses, workers=0)


def test_server_that_is_lost_keeps_the_only_copy_while_the_other_one_is_filled(
    settling, asked, monkeypatch
):
    fill = refill.Refill._fill
    may_fill = threading.Event()

    def fill_then(self, life):
        assert may_fill.wait(DEADLINE_S)
        fill(self, life)

    monkeypatch.setattr(refill.Refill, "_fill", fill_then)
    with job() as (addresses, client):
        client.close()
        settling.set()
        lose(addresses, 1, by=0)
        eventually(lambda: lives_of(addresses, 1) == [0, 2], "server 1 comes back")
        tell(addresses, 0, [1, 2])
        await_questions(asked, 4)
        assert lives_of(addresses, 0) == [1, 2]
        may_fill.set()
        with Client(addresses, worker=0, timeout_s=DEADLINE_S) as again:
            assert set(again.init("w", 0 * ONES, **RULE)) == {1.0}
            await_return(addresses, workers=1)
            assert set(again.push_pull("w", ONES)) == {2.0}


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_server_keeps_the_only_copy_where_the_other_one_was_started_anew(lost, settling):
    options = {"num_servers": 2, "workers": 1, "replicas": 1}
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Server(ServerOptions(index=i, **options))) for i in (0, 1)]
        addresses = ",".join(server.address for server in started)
        with Client(addresses, worker=0, timeout_s=DEADLINE_S) as client:
            client.init("w", 0 * ONES, **RULE)
            client.push_pull("w", ONES)
        other = started[1 - lost]
        other.close()
        anew = ServerOptions(
            **options, index=1 - lost, listen=other.address, addresses=tuple(addresses.split(","))
        )
        stack.enter_context(Server(anew))
        tell(addresses, lost, [1 - lost, lost])
        settling.set()
        await_return(addresses, workers=0)
        with Client(addresses, worker=0, timeout_s=DEADLINE_S) as again:
            assert set(again.init("w", 0 * ONES, **RULE)) == {1.0}
            assert set(again.push_pull("w", ONES)) == {2.0}


def lives_of(addresses: str, server: int) -> list[int]:
    """Of all servers, as this one tells."""
    return list(call_server(addresses, server, "Health", pb.HealthRequest()).lives)
