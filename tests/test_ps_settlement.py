"""How servers with replicas make their copies equal when a worker has gone; see test_ps_copies."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.server.judge import Judge
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.server.settlement import HOLD_S, REST_S, Settlement
from helpers import DEADLINE_S

INCARNATION = 7
Answer = Callable[[Any, float], Any]  # of a server, to a request with a timeout


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Core:
    """Of a server that has lost some workers; worker 99 is there."""

    def __init__(self, *gone: int, num_servers: int = 2) -> None:
        self.gone = dict.fromkeys(gone, (INCARNATION, 0, False))
        self.of_servers = [0] * num_servers
        self.dropped: list[int] = []
        self.settled: list[int] = []
        self.ended: list[int] = []
        self.reasons: list[str] = []
        self.taken: list[bytes] = []
        self.workers = [{"worker": 99, "connected": True, "silent_s": 0.1}]
        self.has_dropped = threading.Event()
        self.is_filled_at_present = False

    def unsettled(self) -> dict[int, tuple[int, int, bool]]:
        return dict(self.gone)

    def wait_unsettled(self, timeout_s: float) -> dict[int, tuple[int, int, bool]]:
        return self.unsettled()

    def is_filling(self) -> bool:
        return self.is_filled_at_present

    def lives(self) -> list[int]:
        return list(self.of_servers)

    def lose(self, server: int, life: int) -> None:
        self.of_servers[server] += self.of_servers[server] == life

    def learn(self, lives: list[int]) -> None:
        self.of_servers = list(map(max, self.of_servers, lives))

    def end_worker(self, worker: int, incarnation: int, reason: str) -> bool:
        self.ended.append(worker)
        self.reasons.append(reason)
        return self.gone.get(worker, (0,))[0] == incarnation

    def status(self) -> dict[str, Any]:
        return {"models": [{"model": 5}], "workers": self.workers}

    def known_pushes(self, model: int, shard: int, worker: int, first: int, limit: int) -> bytes:
        assert limit < 4 << 20  # what a server takes
        return b"known"

    def copy_pushes(self, *place: Any) -> tuple[bytes, int]:
        return b"pushes", 1

    def take_pushes(self, model: int, shard: int, worker: int, pushes: bytes) -> None:
        self.taken.append(pushes)

    def drop_settled(self, worker: int, incarnation: int) -> None:
        self.dropped.append(worker)
        self.has_dropped.set()

    def settle(self, worker: int, incarnation: int) -> None:
        self.settled.append(worker)
        del self.gone[worker]


class Peers:
    """Servers that answer as told, by number; `answers` may raise. Health has their lives."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.healthy_lives: list[int] | None = None

    @contextlib.contextmanager
    def calling(self, server: int) -> Iterator[Any]:
        def call(name: str, request: Any, timeout_s: float) -> Any:
            assert name == "Settle"
            self.asked.append(server)
            return self.answers[server](request, timeout_s)

        yield call

    def health(self, server: int) -> Any:
        if self.healthy_lives is None:
            raise grpc.RpcError
        return pb.HealthReply(lives=self.healthy_lives)


def has_all(request: Any, timeout_s: float) -> Any:
    return pb.SettleReply(will_ask=False)


def silent(clock: Clock) -> Answer:
    def answer(request: Any, timeout_s: float) -> Any:
        clock.now_s += timeout_s
        raise grpc.RpcError

    return answer


def refused(request: Any, timeout_s: float) -> Any:
    raise grpc.RpcError


def settlement_of(
    core: Core, peers: Peers, server: int = 0, clock: Callable[[], float] | None = None
) -> Settlement:
    judge = Judge(core, peers)  # type: ignore[arg-type]
    return Settlement(core, server, len(core.of_servers), judge, clock or Clock())  # type: ignore[arg-type]


@pytest.mark.parametrize("server", [0, 1])
def test_a_silent_server_holds_others_up_once_for_all_workers_and_is_lost_then(server):
    """The larger number waits twice as long: two that cannot reach each other do not both end."""
    core, clock = Core(*range(8)), Clock()
    peers = Peers({1 - server: silent(clock)})
    settlement = settlement_of(core, peers, server, clock)
    begin, hold_s = clock.now_s, HOLD_S * (1 + server)
    while not core.dropped:
        assert clock.now_s - begin <= hold_s
        settlement.attend()
        clock.now_s += REST_S / 4
    assert core.dropped == core.settled == list(range(8))
    assert core.of_servers[1 - server] == 1
    assert clock.now_s - begin >= hold_s


def test_a_server_that_answers_now_and_then_is_not_lost():
    core, clock = Core(*range(8)), Clock()

    def slow(request: Any, timeout_s: float) -> Any:
        clock.now_s += 0.9 * timeout_s
        return has_all(request, timeout_s)

    settlement_of(core, Peers({1: slow}), clock=clock).attend()
    assert core.dropped == list(range(8))
    assert core.of_servers == [0, 0]


def test_a_server_that_was_stopped_itself_asks_again():
    core, clock = Core(0), Clock()

    def missed(request: Any, timeout_s: float) -> Any:
        clock.now_s += 10 * HOLD_S
        peers.answers[1] = has_all
        raise grpc.RpcError

    peers = Peers({1: missed})
    settlement = settlement_of(core, peers, 0, clock)
    settlement.attend()
    assert core.of_servers == [0, 0]
    clock.now_s += REST_S
    settlement.attend()
    assert core.settled == [0]


def test_after_a_failure_a_server_is_asked_again_later_and_others_at_once():
    core, clock = Core(0, num_servers=3), Clock()
    peers = Peers({1: refused, 2: has_all})
    settlement = settlement_of(core, peers, 0, clock)
    for _ in range(5):
        settlement.attend()
    assert peers.asked == [1, 2, 2]  # a shard, and that this is all
    clock.now_s += REST_S
    settlement.attend()
    assert peers.asked == [1, 2, 2, 1]
    assert not core.dropped


def test_without_live_workers_no_server_is_lost():
    core, clock = Core(0), Clock()
    core.workers.clear()
    settlement = settlement_of(core, Peers({1: silent(clock)}), 0, clock)
    for _ in range(10):
        settlement.attend()
        clock.now_s += HOLD_S
    assert core.of_servers == [0, 0]


def test_a_server_that_hears_no_worker_either_loses_no_other():
    core, clock = Core(0), Clock()
    core.workers[0]["silent_s"] = HOLD_S  # its connection stands as yet
    settlement = settlement_of(core, Peers({1: silent(clock)}), 0, clock)
    for _ in range(10):
        settlement.attend()
        clock.now_s += HOLD_S
    assert core.of_servers == [0, 0]
    core.workers[0]["silent_s"] = 0.1
    settlement.attend()
    assert core.of_servers == [0, 1]


def test_a_server_that_hears_of_its_own_loss_loses_no_other():
    core, clock = Core(0), Clock()
    peers = Peers({1: silent(clock)})
    peers.healthy_lives = [1, 0]
    settlement = settlement_of(core, peers, 0, clock)
    for _ in range(3):
        settlement.attend()
        clock.now_s += HOLD_S
    assert core.of_servers == [1, 0]
    assert not core.dropped


def test_a_server_that_has_come_back_is_asked_anew():
    core = Core(0)
    peers = Peers({1: lambda request, timeout_s: pb.SettleReply(will_ask=True)})
    settlement = settlement_of(core, peers)
    settlement.attend()
    assert core.dropped == [0]
    assert not core.settled  # the other one has yet to ask
    core.of_servers[1], peers.answers[1] = 2, has_all
    settlement.attend()
    assert core.settled == [0]


def test_what_is_known_of_a_worker_ends_when_it_is_back():
    core = Core(0)
    peers = Peers({1: lambda request, timeout_s: pb.SettleReply(will_ask=True)})
    settlement = settlement_of(core, peers)
    settlement.attend()
    gone, core.gone = core.gone, {}
    settlement.attend()
    core.gone = gone
    num_asked = len(peers.asked)
    settlement.attend()
    assert len(peers.asked) > num_asked


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_server_that_is_filled_or_lost_settles_when_that_is_over(is_lost):
    core = Core(0)
    core.is_filled_at_present, core.of_servers[0] = not is_lost, int(is_lost)
    settlement = settlement_of(core, Peers({1: has_all}))
    settlement.attend()
    assert not core.ended
    core.is_filled_at_present, core.of_servers[0] = False, 2
    settlement.attend()
    assert core.settled == [0]


def test_pushes_of_all_models_are_taken_slice_by_slice_without_those_that_are_here():
    core, seen = Core(0, num_servers=3), []

    def in_slices(request: Any, timeout_s: float) -> Any:
        seen.append((request.model, request.shard, request.first, request.known, request.done))
        following = min(request.first + 1, 2)
        return pb.SettleReply(pushes=b"%d" % request.first, next=following)

    settlement_of(core, Peers({1: in_slices, 2: has_all})).attend()
    places = [(5, 0, first, b"known", False) for first in (0, 1, 2)]
    assert seen == [*places, (5, 0, 2, b"", True)]
    assert core.taken == [b"0", b"1", b"2", b""]


def request_of(**changes: Any) -> Any:
    return pb.SettleRequest(**{"server": 1, "worker": 0, "incarnation": INCARNATION} | changes)


def test_an_answer_has_pushes_of_this_incarnation_alone():
    settlement = settlement_of(Core(0), Peers({}))
    assert settlement.answer(request_of()).pushes == b"pushes"
    other = settlement.answer(request_of(incarnation=INCARNATION + 1))
    assert (other.pushes, other.next) == (b"", 0)


def test_servers_tell_each_other_that_a_worker_has_left_in_good_order():
    core = Core(0, 1)
    core.gone[1] = (INCARNATION, 0, True)
    told = {}

    def answer(request: Any, timeout_s: float) -> Any:
        told[request.worker] = request.has_left
        return has_all(request, timeout_s)

    settlement = settlement_of(core, Peers({1: answer}))
    settlement.attend()
    assert told == {0: False, 1: True}
    core.reasons.clear()
    for has_left in (False, True):
        settlement.answer(request_of(has_left=has_left))
    assert core.reasons == ["server 1 has lost this worker", ""]


@pytest.mark.parametrize("wrong", [{"server": 2}, {"server": 63}, {"worker": 4_000_000_000}])
def test_a_request_about_nobody_is_refused(wrong):
    core = Core(0)
    with pytest.raises(Refusal, match="expected a server below 2 and a worker below 4096"):
        settlement_of(core, Peers({})).answer(request_of(**wrong))
    assert not core.ended


def test_a_server_is_settled_when_both_have_asked():
    core = Core(0)
    settlement = settlement_of(core, Peers({1: has_all}))
    assert settlement.answer(request_of(done=True)).will_ask
    settlement.attend()
    assert core.dropped == core.settled == [0]
    assert not settlement.answer(request_of(done=True)).will_ask


def test_any_failure_is_followed_by_another_attempt():
    core, peers = Core(0), Peers({1: has_all})
    failures = [OSError("no such file: ca.pem"), MemoryError()]

    def answer(request: Any, timeout_s: float) -> Any:
        if failures:
            raise failures.pop()
        return has_all(request, timeout_s)

    peers.answers[1] = answer
    rests = iter(range(10**6))
    settlement = settlement_of(core, peers, clock=lambda: REST_S * next(rests))
    settlement.start()
    try:
        assert core.has_dropped.wait(DEADLINE_S)
        assert not failures
    finally:
        core.gone = {}
        settlement.close()
