"""Jobs of a host: their priorities, their seats at the arbiter, and who is admitted."""

import contextlib
import itertools
import os
import select
import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dmlcomm
from dmlcomm import PsRefusedError, _core
from dmlcomm.network import proxy_socket, seat
from dmlcomm.proxy.proxy import Proxy, ProxyOptions
from dmlcomm.proxy.seats import SeatOptions
from dmlcomm.ps import Client
from helpers import DEADLINE_S, Ranks, eventually, report, run_ranks
from helpers.parameter_servers import ServerProcess, servers


@contextlib.contextmanager
def proxy(folder, **options):
    with Proxy(ProxyOptions(f"{folder}/0.sock", seats=SeatOptions(**options))) as one:
        yield one


@contextlib.contextmanager
def strangers():
    """Each connection to a proxy comes from a process of its own."""
    numbers = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dmlcomm.proxy.proxy.peer_of", lambda _: (next(numbers), os.getuid()))
        yield


@contextlib.contextmanager
def proxy_of_strangers(folder, **options):
    with strangers(), proxy(folder, **options) as one:
        yield one


@contextlib.contextmanager
def seats(path, *jobs):
    with contextlib.ExitStack() as stack:
        taken = [seat.take(name, priority, path) for name, priority in jobs]
        for one in taken:
            stack.callback(one.close)
        yield taken


def jobs_at(one):
    return [(job["job"], job["priority"], job["processes"]) for job in one.priorities()]


# --- values


@pytest.mark.parametrize("priority", [-1, 8, 1.0, "1", True])
def test_what_is_no_priority_is_refused(priority):
    with pytest.raises(ValueError, match="expected a whole number from 0, which goes first, to 7"):
        dmlcomm.Options(priority=priority)
    with pytest.raises(ValueError, match="expected a whole number"):
        Client("127.0.0.1:1", priority=priority)


def default_priority(rank, world_size):
    return dmlcomm.Options().priority, dmlcomm.Options(priority=0).priority


def test_the_option_goes_before_the_variable():
    [found] = run_ranks(default_priority, 1, env={"DMLCOMM_JOB_PRIORITY": "6"}, make_group=False)
    assert found == (6, 0)
    assert dmlcomm.Options().priority == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharing": "fair"}, '--sharing "fair"; expected strict or weighted'),
        ({"when_full": "wait"}, '--when-full "wait"; expected refuse or preempt'),
        ({"floor": 1.0}, "--floor 1; expected more than 0, so that no job starves, and below 1"),
        ({"floor": 0.0}, "--floor 0; expected more than 0"),
        ({"max_jobs": -1}, "--max-jobs -1; expected 0"),
        ({"num_classes": 1}, "--classes 1; expected 2 to 8, one for each priority, or 0"),
        ({"num_classes": 9}, "--classes 9; expected 2 to 8"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SeatOptions(**options)


# --- seats


def test_processes_of_one_name_and_priority_are_one_job(tmp_path):
    with proxy(tmp_path) as one, seats(one.options.socket, ("a", 4), ("a", 4), ("b", 0)):
        assert jobs_at(one) == [("b", 0, 1), ("a", 4, 2)]
    assert seat.take("a", 4, f"{tmp_path}/0.sock") is None


def test_what_is_no_seat_is_refused(tmp_path):
    with proxy(tmp_path) as one:
        for request in ({"seat": "a", "priority": 8}, {"seat": "a", "priority": 0}):
            with pytest.raises(PsRefusedError, match="this is no request"):
                proxy_socket.ask(one.options.socket, request, DEADLINE_S)
        assert one.priorities() == []


def test_a_seat_is_taken_again_at_a_proxy_that_was_started_again(tmp_path):
    with proxy(tmp_path) as one, seats(one.options.socket, ("a", 4)):
        one.close()
        assert one.priorities() == []
        with proxy(tmp_path) as new:
            eventually(lambda: jobs_at(new) == [("a", 4, 1)], "the seat is taken")


def test_clients_and_the_proxys_own_part_are_one_job(tmp_path):
    with (
        proxy(tmp_path) as one,
        servers(workers=1) as addresses,
        Client(addresses, worker=0, proxy=one.options.socket, priority=2) as client,
    ):
        assert jobs_at(one) == [(addresses, 2, 2)]
        client.init("w", np.zeros(10, np.float32), rule="add", reduce="sum")
        assert (client.push_pull("w", np.ones(10, np.float32)) == 1).all()


def test_servers_are_jobs_of_their_own_though_they_were_given_one_address(tmp_path):
    with proxy(tmp_path) as one:
        environment = {"DMLCOMM_PROXY": one.options.socket}
        with ServerProcess(**environment), ServerProcess(**environment):
            assert [processes for _, _, processes in jobs_at(one)] == [1, 1]


# --- admission


def test_a_full_host_refuses_other_jobs(tmp_path):
    with (
        proxy_of_strangers(tmp_path, max_jobs=1) as one,
        seats(one.options.socket, ("a", 4), ("a", 4)),
    ):
        with pytest.raises(PsRefusedError, match=r"priority 4; this one has 0"):
            seat.take("b", 0, one.options.socket)
        with pytest.raises(PsRefusedError, match="wait until one has ended"):
            Client("127.0.0.1:1", proxy=one.options.socket)
    with proxy_of_strangers(tmp_path, max_jobs=1) as one, seats(one.options.socket, ("b", 7)):
        assert jobs_at(one) == [("b", 7, 1)]


def test_a_job_preempts_the_latest_of_those_that_go_last(tmp_path):
    jobs = [("early", 6), ("late", 6), ("first", 0)]
    with (
        proxy_of_strangers(tmp_path, max_jobs=3, when_full="preempt") as one,
        seats(one.options.socket, *jobs) as [early, late, _],
    ):
        with pytest.raises(PsRefusedError, match="or give this one a smaller priority"):
            seat.take("same", 6, one.options.socket)
        with seats(one.options.socket, ("urgent", 5)):
            early.check()
            with pytest.raises(PsRefusedError, match=r"the place of job late .priority 6. to"):
                late.check()
            eventually(lambda: len(jobs_at(one)) == 3, "the seat is given up")


def test_what_one_process_has_is_one_job(tmp_path):
    with (
        proxy(tmp_path, max_jobs=1, when_full="preempt") as one,
        seats(one.options.socket, ("group", 4), ("servers", 6), ("group", 2)) as own,
        strangers(),
    ):
        path = one.options.socket
        assert len(jobs_at(one)) == 3
        with seats(path, ("group", 5)), pytest.raises(PsRefusedError, match="priority 2; this one"):
            seat.take("other", 2, path)
        with seats(path, ("urgent", 1)):
            for each in own:
                with pytest.raises(PsRefusedError, match=r"job group .priority 2. to a job of"):
                    each.check()


def test_seats_of_a_user_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("dmlcomm.proxy.seats.MOST_SEATS", 2)
    with proxy(tmp_path) as one, seats(one.options.socket, ("a", 4)):
        with seats(one.options.socket, ("b", 4)):
            with pytest.raises(PsRefusedError, match="has 2 seats at this proxy, the most that"):
                seat.take("c", 4, one.options.socket)
            assert len(jobs_at(one)) == 2
        eventually(lambda: len(jobs_at(one)) == 1, "the seat is given up")
        with seats(one.options.socket, ("c", 4)):
            assert len(jobs_at(one)) == 2


def test_a_refusal_is_heard_when_the_proxy_closes_at_once(tmp_path, monkeypatch):
    def send_and_wait_for_the_end(connection, *rest):
        sent = send(connection, *rest)
        ended = select.poll()
        ended.register(connection, 0)  # POLLHUP
        assert ended.poll(DEADLINE_S * 1000)
        return sent

    send = socket.send_fds
    with proxy_of_strangers(tmp_path, max_jobs=1) as one, seats(one.options.socket, ("a", 4)):
        monkeypatch.setattr(socket, "send_fds", send_and_wait_for_the_end)
        with pytest.raises(PsRefusedError, match="wait until one has ended"):
            seat.take("b", 0, one.options.socket)


def test_every_refusal_is_heard(tmp_path):
    with proxy_of_strangers(tmp_path, max_jobs=1) as one, seats(one.options.socket, ("a", 4)):
        for _ in range(300):
            with pytest.raises(PsRefusedError, match="wait until one has ended"):
                seat.take("b", 0, one.options.socket)


def test_two_messages_that_come_together_are_read_one_by_one():
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.sendall(b'{}\n{"error": "preempted"}\n')
        assert proxy_socket.read_message(reader) == {}
        assert proxy_socket.read_message(reader) == {"error": "preempted"}


# --- process groups


def test_groups_have_seats_and_hear_that_they_are_preempted(tmp_path):
    with proxy(tmp_path, max_jobs=1, when_full="preempt") as one:
        env = {"DMLCOMM_PROXY": one.options.socket, "DMLCOMM_JOB_PRIORITY": "5"}
        with Ranks(all_reduce_until_the_end, 2, env=env) as ranks:
            ranks.wait_for("in both groups")  # who is preempted before has no second one
            assert [job[1:] for job in jobs_at(one)] == [(1, 2), (5, 2)]
            assert len({job[0] for job in jobs_at(one)}) == 1
            with seats(one.options.socket, ("other", 0)):
                for text in ranks.collect():
                    assert "gave the place of job" in text


def all_reduce_until_the_end(rank, world_size):
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    group = dist.new_group(pg_options=dmlcomm.Options(priority=1))
    report("in both groups")
    try:
        dist.all_reduce(tensor, group=group)
        while True:
            dist.all_reduce(tensor)
    except dmlcomm.CommError as error:
        with pytest.raises(dmlcomm.CommError, match="refused"):
            dist.new_group()
        return str(error)


def create_refused(rank, world_size):
    with pytest.raises(dmlcomm.CommError, match=r"refused: .* places for 1 jobs"):
        dist.init_process_group("dmlcomm", store=dist.HashStore(), rank=0, world_size=1)


def test_a_group_of_a_job_that_is_not_admitted_is_refused(tmp_path):
    with proxy(tmp_path, max_jobs=1) as one, seats(one.options.socket, ("other", 4)):
        env = {"DMLCOMM_PROXY": one.options.socket}
        run_ranks(create_refused, 1, env=env, make_group=False)


def test_classes_have_a_dscp_each_and_the_last_one_none():
    def dscps(num_classes):
        return [_core.dscp_of_class(priority, num_classes) for priority in range(8)]

    assert dscps(2) == [1, 1, 1, 1, 0, 0, 0, 0]
    assert dscps(3) == [1, 1, 1, 2, 2, 2, 0, 0]
    assert dscps(8) == [1, 2, 3, 4, 5, 6, 7, 0]


def test_shares_are_those_of_the_arbiter():
    assert _core.nic_shares([4, 0, 4]) == [0.025, 0.95, 0.025]
    assert _core.nic_shares([1, 2], is_strict=False, floor=0.0) == pytest.approx([2 / 3, 1 / 3])
