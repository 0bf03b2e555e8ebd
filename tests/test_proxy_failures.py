"""Failures of proxies: nothing that was pushed is lost, and nothing is added twice."""

import contextlib
import gc
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dmlcomm import PsConnectionError, PsRefusedError, PsServerLostError, PsTimeoutError
from dmlcomm.proxy import parent as parent_module
from dmlcomm.proxy.proxy import Proxy, ProxyOptions
from dmlcomm.ps import Client
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import HEARTBEAT_TIMEOUT_S, RETURN_TIMEOUT_S
from dmlcomm.ps.server import proxies
from dmlcomm.ps.server.membership import Membership
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.worker import connections
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import (
    ServerProcess,
    addresses_of,
    checkpoint_of,
    server_processes,
    servers,
)
from helpers.proxies import ProxyProcess

COUNT = 100_003


def attach(path, addresses, worker):
    return Client(addresses, worker=worker, timeout_s=DEADLINE_S, proxy=path)


class Training:
    """Two workers at each of some proxies push distinct integers, and compare every sum.

    Weights are integers, so a push that is lost or counted twice stays in all later sums.
    """

    def __init__(self, paths, addresses):
        self.num = 2 * len(paths)
        self._paths, self._addresses = paths, addresses
        self._changed = threading.Condition()
        self._clocks = [0] * self.num
        self._ways = [False] * self.num
        self._last = 2**62
        self._error = None

    def __enter__(self):
        self._pool = ThreadPoolExecutor(self.num)
        self._futures = [self._pool.submit(self._run, worker) for worker in range(self.num)]
        return self

    def __exit__(self, *_):
        with self._changed:
            self._last = max(self._clocks) + 20
        errors = [future.exception(DEADLINE_S) for future in self._futures]
        self._pool.shutdown()
        assert errors == [None] * self.num

    def wait_for_clocks(self, more=2):
        """Until all workers have gone on."""
        with self._changed:
            goals = [clock + more for clock in self._clocks]
        self._wait(lambda: all(c >= goal for c, goal in zip(self._clocks, goals, strict=True)))

    def wait_for_ways(self, ways):
        """Until the workers go by proxies, or not, as `ways` has it by proxy."""
        expected = [way for way in ways for _ in range(2)]
        self._wait(lambda: self._ways == expected)

    def _wait(self, holds):
        with self._changed:
            done = self._changed.wait_for(lambda: self._error or holds(), DEADLINE_S)
            assert done, (self._clocks, self._ways)
            assert self._error is None, self._error

    def _run(self, worker):
        try:
            with attach(self._paths[worker // 2], self._addresses, worker) as client:
                self._train(client, worker)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise

    def _train(self, client, worker):
        places = np.arange(COUNT, dtype=np.int64)
        expected = np.zeros(COUNT, np.int64)
        client.init("w", expected, rule="add", reduce="sum")
        clock = 0
        while clock < self._last:
            gradient = (places + clock + 1) * (worker + 1)
            if clock % 3 == 0:  # acknowledged by the proxy, long before it is in a version
                client.push("w", gradient)
                client.clock()
                seen = client.pull("w")
            else:
                seen = client.push_pull("w", gradient)
            expected += (places + clock + 1) * (self.num * (self.num + 1) // 2)
            clock += 1
            assert (seen == expected).all(), f"worker {worker}, clock {clock}"
            with self._changed:
                self._clocks[worker] = clock
                self._ways[worker] = client.by_proxy
                self._changed.notify_all()


@contextlib.contextmanager
def training(folder, num_proxies, num_servers, shape):
    """The proxies, and what trains with them."""
    with contextlib.ExitStack() as stack:
        addresses = stack.enter_context(servers(num_servers, workers=2 * num_proxies))
        paths = [f"{folder}/{i}.sock" for i in range(num_proxies)]
        started = [stack.enter_context(ProxyProcess(path, shape)) for path in paths]
        running = stack.enter_context(Training(paths, addresses))
        running.wait_for_clocks()
        yield started, running, lambda i: stack.enter_context(ProxyProcess(paths[i], shape))


@pytest.mark.parametrize(("num_servers", "shape"), [(1, "chain"), (2, "binary")])
def test_an_inner_proxy_that_is_killed_is_masked_and_may_return(tmp_path, num_servers, shape):
    with training(tmp_path, 3, num_servers, shape) as (started, running, start):
        started[0].kill()
        running.wait_for_clocks()
        running.wait_for_ways([False, True, True])
        start(0)
        running.wait_for_ways([True] * 3)
        running.wait_for_clocks()


def test_workers_go_direct_when_all_proxies_are_killed(tmp_path):
    with training(tmp_path, 2, 2, "chain") as (started, running, start):
        for proxy in started:
            proxy.kill()
        running.wait_for_clocks()
        running.wait_for_ways([False, False])
        start(1)
        running.wait_for_ways([False, True])
        running.wait_for_clocks()


def test_a_proxy_that_sleeps_is_done_without_and_comes_back(tmp_path):
    with training(tmp_path, 3, 1, "chain") as (started, running, _):
        started[1].process.send_signal(signal.SIGSTOP)
        running.wait_for_ways([True, False, True])
        running.wait_for_clocks()
        started[1].process.send_signal(signal.SIGCONT)
        running.wait_for_ways([True] * 3)
        running.wait_for_clocks()


@pytest.mark.alone
def test_several_proxies_that_are_stopped_are_missed_no_later_than_one(tmp_path):
    """Nobody waits for the ends of their connections, one after the other."""
    with training(tmp_path, 5, 1, "flat") as (started, running, _):
        for proxy in started[:4]:
            proxy.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        running.wait_for_ways([False] * 4 + [True])
        running.wait_for_clocks()
        assert time.monotonic() - begin < HEARTBEAT_TIMEOUT_S + 1
        for proxy in started[:4]:
            proxy.process.send_signal(signal.SIGCONT)


def test_a_tree_that_has_ended_leaves_nothing_behind_in_a_proxy(tmp_path):
    """Connections and threads go at once, and not when Python next collects garbage."""
    with servers(1, workers=1) as addresses, Proxy(ProxyOptions(f"{tmp_path}/0.sock")) as proxy:
        client = attach(f"{tmp_path}/0.sock", addresses, 0)
        init(client)
        ((key, job),) = proxy._jobs.items()
        (node,) = job.nodes
        parts = [weakref.ref(part) for part in (node, node._core, node._uplink, node._service)]
        gc.disable()
        try:
            client.close()
            proxy._forget(key, job)
            del job, node
            eventually(lambda: not any(part() for part in parts), "all parts freed")
        finally:
            gc.enable()


def test_the_next_tree_has_the_place_of_a_proxy_that_did_not_connect(tmp_path, monkeypatch):
    """The server would wait half a minute for the connection of a proxy that has registered."""
    trees = []

    def connect(parent, control, place, reply):
        trees.append(place.tree)
        if len(trees) == 1:
            raise PsConnectionError("the proxy ends when it has registered")
        connect_uplink(parent, control, place, reply)

    connect_uplink = parent_module.Parent._connect_uplink
    monkeypatch.setattr(parent_module.Parent, "_connect_uplink", connect)
    path = f"{tmp_path}/0.sock"
    with (
        servers(1, workers=1) as addresses,
        Proxy(ProxyOptions(path)),
        attach(path, addresses, 0) as client,
    ):
        init(client)
        assert (client.push_pull("w", ones(3)) == 3).all()
    assert trees == [0, 1]


@pytest.mark.parametrize("older", [0, 1])
def test_workers_of_proxies_go_on_from_checkpoints_that_are_a_clock_apart(tmp_path, older):
    """The older server lacks the pushes of one clock; nothing else is lost or added twice."""
    options = ("--workers", "2", "--checkpoint", str(tmp_path), "--checkpoint-every", "1")
    paths = [f"{tmp_path}/{i}.sock" for i in range(2)]
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(server_processes(2, *options))
        addresses = addresses_of(started)
        for path in paths:
            stack.enter_context(ProxyProcess(path, "chain"))
        meet = threading.Barrier(3)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        futures = [pool.submit(_three_clocks, i, paths[i], addresses, meet) for i in range(2)]
        meet.wait(DEADLINE_S)
        for server in started:
            eventually(lambda s=server: checkpoint_of(s.address).get("w") == 2, "a checkpoint")
        for server in started:
            server.kill()
        (newest,) = (tmp_path / f"server-{older}").glob("*-clock-*2.ckpt")
        newest.unlink()
        for index, server in enumerate(started):
            place = ("--servers", "2", "--index", str(index), "--listen", server.address)
            stack.enter_context(ServerProcess(*place, *options))
        meet.wait(DEADLINE_S)
        expected = [111, 101] if older == 1 else [101, 111]
        for future in futures:
            # The first half of the elements is of server 0.
            assert future.result(DEADLINE_S)[[0, -1]].tolist() == [3 * n for n in expected]


def _three_clocks(worker, path, addresses, meet):
    """Pushes 1, 10 and 100, as worker 1 twice that; between the last two it meets the test."""
    with attach(path, addresses, worker) as client:
        init(client)
        for push in (1, 10):
            client.push_pull("w", ones(push * (worker + 1)))
        meet.wait(DEADLINE_S)
        meet.wait(DEADLINE_S)
        return client.push_pull("w", ones(100 * (worker + 1)))


def test_a_proxy_may_die_before_there_is_a_model(tmp_path):
    def train(worker, paths, addresses, meet):
        with attach(paths[worker], addresses, worker) as client:
            meet.wait(DEADLINE_S)
            return client.init("w", np.full(COUNT, worker)).tolist()[-1]

    meet = threading.Barrier(3)
    paths = [f"{tmp_path}/{i}.sock" for i in range(2)]
    with (
        servers(2, workers=2) as addresses,
        ProxyProcess(paths[0], "chain") as first,
        ProxyProcess(paths[1], "chain"),
        ThreadPoolExecutor(2) as pool,
    ):
        futures = [pool.submit(train, i, paths, addresses, meet) for i in range(2)]
        meet.wait(DEADLINE_S)
        first.kill()
        seen = {future.result(DEADLINE_S) for future in futures}
    assert len(seen) == 1


# --- one worker by a proxy, one directly


@contextlib.contextmanager
def two_workers(folder, num_servers=1, **options):
    """Worker 0 goes directly, worker 1 by the proxy; their weights are sums of integers."""
    path = f"{folder}/0.sock"
    with (
        servers(num_servers, workers=2, **options) as addresses,
        ProxyProcess(path, "chain") as proxy,
        Client(addresses, worker=0, timeout_s=DEADLINE_S) as direct,
        ThreadPoolExecutor(2) as pool,
        contextlib.ExitStack() as stack,
    ):
        carried = attach(path, addresses, 1)
        for made in [pool.submit(init, client) for client in (direct, carried)]:
            made.result(DEADLINE_S)
        yield SimpleNamespace(
            path=path, proxy=proxy, direct=direct, carried=carried, pool=pool, stack=stack
        )


def init(client):
    client.init("w", np.zeros(COUNT, np.int64), rule="add", reduce="sum")


def ones(factor):
    return np.full(COUNT, factor, np.int64)


def test_a_worker_that_does_not_come_back_in_time_is_done_without_and_refused(
    tmp_path,
):
    with two_workers(tmp_path, return_timeout_s=1e-3) as job:
        with job.carried._connections._recovering:  # until then it cannot register
            job.proxy.kill()
            assert (job.direct.push_pull("w", ones(5)) == 5).all()
        with pytest.raises(PsRefusedError, match="taken worker 1 for lost"):
            job.carried.push_pull("w", ones(1))
        job.carried.close()


def test_a_worker_that_leaves_waits_until_its_pushes_cannot_be_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "FLUSH_TIMEOUT_S", DEADLINE_S)
    with two_workers(tmp_path, num_servers=2) as job:
        job.carried.push("w", ones(3))
        job.carried.clock()
        leaving = job.pool.submit(job.carried.close)
        # The proxy alone has the push, as worker 0 has not closed the clock.
        job.proxy.kill()
        leaving.result(DEADLINE_S)
        assert not job.carried.by_proxy
        assert (job.direct.push_pull("w", ones(40)) == 43).all()


def test_what_pulls_show_of_their_worker_is_there_once_whatever_happens_to_the_proxy(tmp_path):
    """Worker 0 is a clock behind worker 1, whose proxy is lost and started again and again."""
    with two_workers(tmp_path, num_servers=2) as job:
        proxy = job.proxy
        for clock in range(1, 9):
            job.carried.push("w", ones(1))
            job.carried.clock()
            if clock % 2 == 0:
                proxy.kill()
                proxy = job.stack.enter_context(ProxyProcess(job.path, "chain"))
            for _ in range(3):
                others, own = divmod(job.carried.pull("w", staleness=1), 100)
                assert set(others.tolist()) == {clock - 1}
                assert set(own.tolist()) <= {clock - 1, clock}
            job.direct.push("w", ones(100))
            job.direct.clock()
        assert (job.carried.pull("w") == 808).all()
        assert (job.direct.pull("w") == 808).all()
        job.carried.close()


def test_a_worker_that_moves_twice_stays_direct_while_something_is_under_way(tmp_path):
    with two_workers(tmp_path, num_servers=2) as job:
        pushing = job.carried.push_pull_async("w", ones(3))
        job.proxy.kill()
        moving = job.carried._connections
        with moving._recovering:
            moving.move(job.carried._recreate, "it is lost", DEADLINE_S)
            assert not job.carried.by_proxy
            with ProxyProcess(job.path, "chain"):
                moving.move(job.carried._recreate, "it is lost again", DEADLINE_S)
                assert not job.carried.by_proxy
        assert (job.direct.push_pull("w", ones(40)) == 43).all()
        assert (pushing.result(DEADLINE_S) == 43).all()
        job.carried.close()


def test_a_worker_that_was_moved_meanwhile_is_not_moved_again(tmp_path, monkeypatch):
    with two_workers(tmp_path) as job:
        job.carried._watch.close()
        moving = job.carried._connections

        def is_lost_after_a_move(name, request, **options):
            assert name == "Beat"
            moving.move(job.carried._recreate, "an operation has noticed", DEADLINE_S)
            raise PsConnectionError("no answer")

        before = moving._controls[0]
        monkeypatch.setattr(before, "call", is_lost_after_a_move)
        moving.look(job.carried._recreate)
        assert moving._moves == 1
        assert moving._controls[0] is not before
        pushing = job.carried.push_pull_async("w", ones(3))
        assert (job.direct.push_pull("w", ones(40)) == 43).all()
        assert (pushing.result(DEADLINE_S) == 43).all()
        job.carried.close()


def test_a_worker_that_finds_no_way_to_the_servers_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "RETURN_TIMEOUT_S", 0.5)
    path = f"{tmp_path}/0.sock"
    with (
        ServerProcess("--workers", "1") as server,
        ProxyProcess(path, "chain") as proxy,
        Client(server.address, worker=0, proxy=path, reconnect_timeout_s=0) as client,
    ):
        init(client)
        proxy.kill()
        server.kill()
        with pytest.raises(PsServerLostError, match="lost its way to the servers"):
            client.push("w", ones(1))
            client.clock()
            client.pull("w")


def test_a_worker_that_leaves_while_it_looks_for_a_way_looks_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "FLUSH_TIMEOUT_S", 0.0)
    path = f"{tmp_path}/0.sock"
    with (
        ServerProcess("--workers", "1") as server,
        ProxyProcess(path, "chain") as proxy,
    ):
        client = Client(server.address, worker=0, proxy=path, reconnect_timeout_s=1e6)
        init(client)
        moving = threading.Event()
        again = client._connections._options.route.again

        def again_and_tell(timeout_s):
            moving.set()
            return again(timeout_s)

        monkeypatch.setattr(client._connections._options.route, "again", again_and_tell)
        proxy.kill()
        server.kill()
        assert moving.wait(DEADLINE_S)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(client.close).result(DEADLINE_S)


def test_a_proxy_that_does_not_carry_the_job_moves_nobody(tmp_path, monkeypatch):
    with two_workers(tmp_path) as job:
        moving = job.carried._connections
        job.carried._watch.close()
        job.proxy.kill()
        job.carried._connections.look(job.carried._recreate)
        assert not job.carried.by_proxy
        moves = moving._moves
        with ProxyProcess(job.path, "chain"):
            monkeypatch.setattr(moving._options.route, "_token", "of another job")
            moving.return_to_proxy(job.carried._recreate, DEADLINE_S)
            assert moving._moves == moves
            monkeypatch.undo()
            moving.return_to_proxy(job.carried._recreate, DEADLINE_S)
            assert job.carried.by_proxy
        job.carried.close()


# --- heartbeats to the parent


@pytest.mark.parametrize(
    ("answers", "why"),
    [(["paused", "heard", "late", "heard"], ""), (["heard", "paused", "late"], "was silent")],
)
def test_a_proxy_that_slept_asks_its_parent_once_more(monkeypatch, answers, why):
    clock = [0.0]
    monkeypatch.setattr(parent_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(parent_module, "HEARTBEAT_INTERVAL_S", 1e-3)
    of = parent_module.Parent(SimpleNamespace(server=0), "", None, None, None, None, lambda: None)
    left = list(answers)

    def call(name, request, timeout_s):
        assert name == "Beat"
        answer = left.pop(0)
        if answer == "heard" and not left:
            of._closed.set()
        if answer != "heard":
            # The deadline is over by the time at which this process runs again.
            clock[0] += 10 if answer == "paused" else timeout_s
            raise PsTimeoutError("no answer")

    of._watch(SimpleNamespace(call=call, address="there"))
    assert why in of._failure
    assert bool(why) == bool(of._failure)


# --- the trees below one server


class Core:
    """Notes what becomes of workers."""

    def __init__(self):
        self.given_up = []
        self.trees = 0

    def end_tree(self):
        self.trees += 1
        return self.trees

    def gone(self):
        return list(self.given_up)

    def give_up(self, worker):
        self.given_up.append(worker)

    def carry(self, worker):
        pass

    def has_lost_proxy(self):
        return False


class Trees:
    """One server without connections, and the descriptions of its models."""

    def __init__(self, num_workers=2, return_timeout_s=RETURN_TIMEOUT_S):
        self.core = Core()
        self.models = {}
        self.members = Membership(num_workers, set, gone_workers=self.core.gone)
        models = SimpleNamespace(descriptions=lambda: self.models)
        self.proxies = proxies.Proxies(
            *(self.core, 0, 1, self.members, Membership(0, set), models), return_timeout_s
        )

    def join(self, name, first=True, shape="chain", wait_s=0.0, **others):
        place = {"id": name, "address": f"{name}:1", "host_name": name, "process": name[0]}
        request = pb.JoinTreeRequest(**place, shape=shape, first=first, **others)
        return self.proxies.join(request, wait_s)

    def register(self, worker, via):
        request = SimpleNamespace(worker=worker, via=via, incarnation=7)
        with self.proxies.arriving(request):
            session = self.members.register(worker, 7, "host", via)
            self.proxies.take(worker, via)
        return session

    def fix(self):
        """A tree of two proxies, with a worker each."""
        for worker, name in enumerate(("a", "b")):
            self.join(name)
            self.register(worker, name)
        assert [self.join(name, first=False).place for name in ("a", "b")] == [0, 1]

    def miss_a_worker(self):
        """Worker 1 comes too late for the tree of "a"; the next one has "b" and worker 0 so far."""
        self.join("a")
        self.register(0, "a")
        self.register(1, "")  # directly
        assert self.join("a", first=False).expected == [0]
        with pytest.raises(Refusal, match="its tree has ended"):
            self.register(1, "a")
        self.join("b")
        self.register(0, "b")


@pytest.fixture
def trees():
    made = Trees()
    yield made
    made.proxies.close()


def test_a_tree_that_is_not_fixed_goes_on_without_a_proxy(trees):
    trees.join("a")
    trees.join("b")
    trees.register(0, "a")
    trees.proxies.leave("a", "it ends")
    assert trees.core.trees == 0
    assert trees.join("a", first=False).ended
    assert not trees.join("b", first=False).ended
    trees.register(1, "b")
    assert not trees.join("b", first=False).known  # worker 0 has to come first
    trees.register(0, "b")
    assert trees.join("b", first=False).expected == [0, 1]


def test_auto_waits_for_the_first_model(trees):
    for worker, name in enumerate(("a", "b")):
        trees.join(name, shape="auto")
        trees.register(worker, name)
    assert not trees.join("a", first=False).known
    trees.models[1] = model_of(1)
    assert trees.join("a", first=False).shape == "flat"


def model_of(count):
    return pb.Model(spaces=[pb.Space(dtype="f32", count=count)], num_servers=1)


def test_auto_makes_another_tree_for_a_model_that_is_much_larger():
    trees = Trees(num_workers=3)
    trees.models[1] = model_of(100_000)

    def shape(names):
        for worker, name in enumerate(names):
            trees.join(name, shape="auto")
            trees.register(worker, name)
        return trees.join(names[0], first=False).shape

    assert shape("abc") == "flat"
    for number, (count, num_trees) in enumerate([(350_000, 0), (20_000_000, 1)], 2):
        trees.models[number] = model_of(count)
        trees.proxies.model_is_known()
        assert trees.core.trees == num_trees
    assert shape("def") == "chain"
    trees.models[9] = model_of(2_000_000_000)
    trees.proxies.model_is_known()
    assert trees.core.trees == 1
    trees.proxies.close()


@pytest.mark.parametrize(("oversubscription", "shape"), [(0, "chain"), (4, "rack")])
def test_one_proxy_that_knows_of_a_narrow_uplink_is_enough(oversubscription, shape):
    trees = Trees(num_workers=6)
    for worker in range(6):
        known = {"oversubscription": oversubscription, "shard_bytes": 1e9} if worker == 4 else {}
        trees.join(str(worker), shape="auto", rack=f"rack{worker // 2}", **known)
        trees.register(worker, str(worker))
    assert trees.join("0", first=False).shape == shape
    trees.proxies.close()


def test_a_fixed_tree_ends_with_a_proxy_and_the_next_waits_for_all(trees):
    trees.fix()
    trees.join("c")  # of the next one
    trees.proxies.leave("a", "it ends")
    assert trees.core.trees == 1
    assert trees.join("b", first=False).ended
    with pytest.raises(Refusal, match="its tree has ended"):
        trees.register(1, "b")
    trees.register(1, "c")
    assert not trees.join("c", first=False).known
    trees.register(0, "")  # directly
    assert trees.join("c", first=False).expected == [1]


def test_the_next_tree_waits_for_a_worker_that_came_too_late_for_this_one(trees):
    trees.miss_a_worker()
    assert not trees.join("b", first=False).known
    trees.register(1, "b")
    # The tree before was made too early, so others may come, too.
    assert not trees.join("b", first=False).known
    assert trees.join("b", first=False, wait_s=60.0).expected == [0, 1]


def test_a_worker_that_came_too_late_for_a_tree_and_ends_holds_no_tree_up():
    trees = Trees(return_timeout_s=10 * DEADLINE_S)
    trees.miss_a_worker()
    trees.core.give_up(1)  # as its own connection has ended
    assert trees.join("b", first=False, wait_s=DEADLINE_S).expected == [0]
    trees.proxies.close()


def test_a_worker_that_has_left_is_not_waited_for_when_its_tree_ends(trees):
    trees.fix()
    session = trees.members.find(trees.members.carried()[0].id)
    assert trees.proxies.leaves(session.worker, session.via, lost=False)
    trees.members.end(session, "it has left")
    assert trees.core.given_up == []  # its proxy has to tell it, after its last pushes
    trees.proxies.leave(session.via, "it ends")
    assert trees.core.given_up == [session.worker]


@pytest.mark.parametrize("parent_lives", [True, False])
def test_the_next_tree_has_no_edge_between_proxies_that_were_cut_off(trees, parent_lives):
    trees.fix()
    assert trees.join("b", first=False).parent == "a:1"
    if not parent_lives:  # it is silent for all, and nobody knows about the network
        trees.proxies._proxies["a"].heard -= HEARTBEAT_TIMEOUT_S
    trees.proxies.leave("b", "its parent is silent", is_cut_off=True)
    for worker, name in enumerate(("a again", "b again")):  # nodes of the same processes
        trees.join(name)
        trees.register(worker, name)
    expected = "" if parent_lives else "a again:1"
    assert trees.join("b again", first=False).parent == expected
