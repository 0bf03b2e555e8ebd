"""The parts of the parameter server that need neither a socket nor a core: milliseconds each."""

import errno
import os
import socket
import threading
import zlib
from unittest import mock

import grpc
import numpy as np
import pytest

from dmlcomm.errors import PsCheckpointError
from dmlcomm.ps import pairing, protocol
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.commands import _place
from dmlcomm.ps.description import difference
from dmlcomm.ps.pairing import STRIPE
from dmlcomm.ps.run_command import READY_LINE, workers_of
from dmlcomm.ps.server import absences, hosts, membership, rates, rules
from dmlcomm.ps.server.barrier import Barrier
from dmlcomm.ps.server.checkpoint import KEPT, CheckpointDirectory
from dmlcomm.ps.server.membership import Membership
from dmlcomm.ps.server.refusal import Refusal
from dmlcomm.ps.status_view import to_dict
from dmlcomm.ps.worker import layout
from dmlcomm.ps.worker.common_clock import steps_back
from dmlcomm.ps.worker.layout import Memory, TensorSpec
from dmlcomm.rail import Rail
from dmlcomm.units import format_bytes
from helpers import eventually


def nics(*addresses):
    return [
        Rail(f"eth{i}", address.partition("/")[0], int(address.partition("/")[2] or 24))
        for i, address in enumerate(addresses)
    ]


def named(pairs):
    return [(worker.address, server.address) for worker, server in pairs]


# --- pairing of NICs


def test_one_nic_meets_all_of_the_server_and_begins_with_its_own_subnet():
    paired = pairing.pair(5, nics("10.0.1.9"), nics("10.0.0.1", "10.0.1.1", "10.0.2.1"))
    assert [server.address for _, server in paired.pairs] == ["10.0.0.1", "10.0.1.1", "10.0.2.1"]
    assert paired.first_rail == 1


@pytest.mark.parametrize("servers", [2, 3, 4])
def test_workers_with_one_nic_spread_evenly(servers):
    of_server = nics(*(f"10.0.0.{i + 1}" for i in range(servers)))
    for address in ("10.0.0.99", "10.9.0.99"):  # all in its subnet, none in its subnet
        first = [pairing.pair(w, nics(address), of_server).first_rail for w in range(2 * servers)]
        assert sorted(first) == sorted([*range(servers)] * 2)


def test_several_nics_pair_by_subnet_and_stripe():
    worker, server = nics("10.0.0.9", "10.0.1.9"), nics("10.0.1.1", "10.0.0.1")
    paired = pairing.pair(0, worker, server)
    assert named(paired.pairs) == [("10.0.0.9", "10.0.0.1"), ("10.0.1.9", "10.0.1.1")]
    assert paired.first_rail == STRIPE


@pytest.mark.parametrize(("k", "r"), [(2, 1), (2, 3), (3, 2), (4, 4), (2, 5)])
def test_every_nic_is_in_a_pair(k, r):
    worker = nics(*(f"10.1.{i}.9" for i in range(k)))
    server = nics(*(f"10.2.{i}.1" for i in range(r)))
    paired = pairing.pair(0, worker, server)
    assert len(paired.pairs) == max(k, r)
    assert {w for w, _ in paired.pairs} == set(worker)
    assert {s for _, s in paired.pairs} == set(server)


def test_nics_of_other_address_families_do_not_meet():
    paired = pairing.pair(0, nics("10.0.0.9"), nics("fd00::1/64", "10.0.0.1"))
    assert named(paired.pairs) == [("10.0.0.9", "10.0.0.1")]
    with pytest.raises(ValueError, match=r"worker 3 .*10\.0\.0\.9.*fd00::1.*DMLCOMM_SOCKET_IFNAME"):
        pairing.pair(3, nics("10.0.0.9"), nics("fd00::1/64"))


# --- addresses, names, tokens


@pytest.mark.parametrize("text", ["a:1", "10.0.0.1:65535", "[::1]:7000", "[fe80::1%eth0]:1"])
def test_legal_address(text):
    assert protocol.parse_address(f" {text} ") == text


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:65536", "a:-1", "::1:7000", "[a]b:1:2"])
def test_illegal_address_is_named(text):
    with pytest.raises(ValueError, match="host:port"):
        protocol.parse_address(text)


def test_servers_are_kept_in_order_and_named_once():
    assert protocol.parse_servers("b:2,a:1") == ["b:2", "a:1"]
    with pytest.raises(ValueError, match="a:1 more than once"):
        protocol.parse_servers("a:1,b:1,a:1")


def test_token_of_any_text_is_compared():
    assert protocol.same_token("geheim ü", "geheim ü")
    assert not protocol.same_token("geheim", "geheim ")


def test_place_of_a_server():
    assert _place("3", "h:0", 2) == (3, 2)
    assert _place("a:1,b:2", "b:2", None) == (2, 1)
    with pytest.raises(ValueError, match="--index"):
        _place("a:1,b:2", "c:3", None)


# --- layout


def test_dense_tensors_of_one_type_form_a_space():
    specs = [TensorSpec((2, 3), "f32"), TensorSpec((), "i64"), TensorSpec((5,), "f32")]
    found = layout.dense_layout(specs)
    assert found.spaces == (("f32", 11, 0), ("i64", 1, 0))
    memories = [Memory(100 * i, spec.count, None) for i, spec in enumerate(specs)]
    assert found.memory_of(memories).addresses() == [[(0, 6), (200, 5)], [(100, 1)]]


def test_empty_tensor_takes_no_buffer():
    found = layout.dense_layout([TensorSpec((0,), "f32"), TensorSpec((2,), "f32")])
    assert found.memory_of([Memory(0, 0, None), Memory(8, 2, None)]).addresses() == [[(8, 2)]]


def test_every_table_is_a_space():
    found = layout.table_layout([TensorSpec((10, 4), "f32"), TensorSpec((5, 2), "f32")])
    assert found.spaces == (("f32", 40, 4), ("f32", 10, 2))
    with pytest.raises(ValueError, match="matrix"):
        layout.table_layout([TensorSpec((10,), "f32")])


@pytest.mark.parametrize(("dtype", "size"), [("u8", 1), ("bf16", 2), ("f32", 4), ("i64", 8)])
def test_bytes_of_an_element(dtype, size):
    assert TensorSpec((3,), dtype).element_bytes == size


def test_dict_may_come_in_any_order():
    structure = layout.structure_of({"a": 1, "b": 2})
    assert structure.flatten({"b": 20, "a": 10}, "model") == [10, 20]
    assert structure.rebuild([1, 2]) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="'b' is missing"):
        structure.flatten({"a": 1, "c": 2}, "model")
    with pytest.raises(ValueError, match="a dict of 2 tensors, got a list of 2"):
        structure.flatten([1, 2], "model")


def test_conflict_names_both_models_and_the_first_difference():
    def model(rows):
        tensors = [pb.Tensor(key="w", shape=[rows, 2], dtype="f32")]
        return pb.Model(name="m", tensors=tensors, rule="sgd", options={"lr": 0.5})

    text = difference(model(3), model(4))
    assert "w f32[3, 2]" in text
    assert "w f32[4, 2]" in text
    assert "lr=0.5" in text


# --- rules


def test_rule_is_loaded_from_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "my_rule.py").write_text("def halve(w, g, state, step):\n    w *= 0.5\n")
    monkeypatch.chdir(tmp_path)
    weights = np.ones(3)
    rules.load_rule("my_rule:halve")(weights, None, {}, 1)
    assert weights.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_colon", "module:function"),
        ("no_such_module_at_all:f", "No module"),
        ("json:nothing", "no attribute"),
        ("json:loads", "weights, gradient, state, step"),
        ("json:__name__", "not a callable"),
    ],
)
def test_rule_that_cannot_be_used_is_named(name, reason):
    with pytest.raises(ValueError, match=reason):
        rules.load_rule(name)


@pytest.mark.parametrize("names", ["momentum", ("a", "a"), ("",), (1,), 3])
def test_names_of_state_that_cannot_be_used_are_shown(names):
    def rule(weights, gradient, state, step):
        """Does nothing."""

    rule.state_arrays = names
    with pytest.raises(ValueError, match=r"state_arrays = .*expected a tuple of different names"):
        rules.check_rule(rule, "mine")


# --- membership and barrier


def test_number_of_a_live_worker_is_taken_and_of_a_dead_one_free():
    alive = {0}
    members = Membership(2, lambda: alive)
    first = members.register(0, 1, "a")
    first.joined = True
    with pytest.raises(Refusal, match="number is taken by a client on a") as refused:
        members.register(0, 2, "b")
    assert refused.value.code == grpc.StatusCode.ALREADY_EXISTS
    assert members.register(0, 1, "a").id != first.id  # the same client, again
    with pytest.raises(Refusal, match="register again"):
        members.find(first.id)
    members.find(members.register(1, 5, "c").id).joined = True
    alive.clear()
    assert members.register(1, 7, "d").worker == 1


def test_who_joins_while_the_core_is_asked_is_alive():
    sessions = []

    def alive_a_moment_ago() -> set[int]:
        for session in sessions:
            session.joined = True
        return set()

    members = Membership(1, alive_a_moment_ago)
    sessions.append(members.register(0, incarnation=1, host_name="a"))
    assert members.live_workers() == {0}
    assert members.live_workers() == set()  # had joined before, and is not connected


def test_servers_choose_free_numbers():
    members = Membership(3, set)
    members.register(1, 1, "a")
    assert [members.register(-1, i, "a").worker for i in (2, 3)] == [0, 2]
    with pytest.raises(Refusal, match="0 to 4095"):
        members.register(4096, 1, "a")


def come_and_go(members, times):
    """The numbers of workers that come one after the other, each when the one before has left."""
    numbers = []
    for incarnation in range(times):
        session = members.register(-1, incarnation, "a")
        numbers.append(session.worker)
        members.end(session, "has left")
    return numbers


def test_numbers_of_workers_that_went_long_ago_are_given_again(monkeypatch):
    monkeypatch.setattr(membership, "NUMBER_KEPT_S", 0.0)
    assert come_and_go(Membership(2, set), 5) == [0, 1, 0, 1, 0]


def test_numbers_of_workers_that_have_just_gone_are_given_when_there_is_no_other(monkeypatch):
    monkeypatch.setattr(membership, "MAX_WORKERS", 3)
    members = Membership(1, set)
    assert come_and_go(members, 5) == [0, 1, 2, 0, 1]
    for incarnation, number in enumerate((2, 0, 1)):
        assert members.register(-1, incarnation, "a").worker == number
    with pytest.raises(Refusal, match="all 3 numbers of workers are taken by clients that are"):
        members.register(-1, 9, "b")


def test_a_worker_that_has_registered_again_is_not_given_up():
    members = Membership(1, set)
    session = members.register(0, 1, "a")
    given_up = []

    def give_up(worker):
        again = threading.Thread(target=members.register, args=(0, 1, "a"), daemon=True)
        again.start()
        again.join(0.1)
        given_up.append((worker, again.is_alive()))

    members.if_newest(session, give_up)
    assert given_up == [(0, True)]  # it registers when that is over
    eventually(lambda: members.find_client(0, 1) is not session, "the worker registers")
    members.if_newest(session, give_up)
    assert len(given_up) == 1


def test_numbers_of_workers_that_were_lost_are_given_again(monkeypatch):
    monkeypatch.setattr(membership, "NUMBER_KEPT_S", 0.0)
    members = Membership(1, set)
    members.register(-1, 1, "a").joined = True  # and is not connected
    assert members.register(-1, 2, "a").worker == 0


def test_barrier_passes_when_all_live_workers_have_come():
    live = {0, 1}
    barrier = Barrier(lambda: live, lambda: 0)
    assert not barrier.arrive(0, ticket=1, wait_s=0)
    assert barrier.missing() == [1]
    assert barrier.arrive(1, ticket=1, wait_s=0)
    assert barrier.arrive(0, ticket=1, wait_s=0)  # it had passed meanwhile
    assert not barrier.arrive(0, ticket=2, wait_s=0)


def test_barrier_does_not_wait_for_the_dead_and_waits_for_who_never_came():
    live, missing = {0, 1}, [1]
    barrier = Barrier(lambda: live, lambda: missing[0])
    live.remove(1)
    assert not barrier.arrive(0, ticket=1, wait_s=0)
    missing[0] = 0
    assert barrier.arrive(0, ticket=1, wait_s=0)


def test_barrier_that_closes_ends_its_waits():
    barrier = Barrier(lambda: {0, 1}, lambda: 0)
    waiting = threading.Thread(target=barrier.arrive, args=(0, 1, 60))
    waiting.start()
    barrier.close()
    waiting.join(10)
    assert not waiting.is_alive()


# --- checkpoints


def model_of(count):
    spaces = [pb.Space(dtype="f32", count=count)]
    return pb.Model(name="net", spaces=spaces, num_servers=2, rule="sgd")


def shards_of(seed):
    values = np.random.default_rng(seed).bytes(1000)
    arrays = [memoryview(values[:600]), memoryview(values[600:]), memoryview(b"")]
    pushes = memoryview(np.random.default_rng(seed).bytes(64))
    return [{"shard": 1, "steps": [3, 4], "arrays": arrays, "pushes": pushes}]


# By worker; the second is the largest that a client draws.
INCARNATIONS = {0: 5, 2: 2**63 - 1}


def written(tmp_path, clocks=(10,)):
    directory = CheckpointDirectory(tmp_path, 1, 2)
    paths = [
        directory.write(7, model_of(150), clock, [0, 2], shards_of(clock), INCARNATIONS)
        for clock in clocks
    ]
    return directory, paths


def test_checkpoints_are_one_servers_at_a_time_and_one_users(tmp_path):
    old = os.umask(0)
    try:
        directory, (path,) = written(tmp_path / "root")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    with pytest.raises(PsCheckpointError, match="in use by another server 1"):
        CheckpointDirectory(tmp_path / "root", 1, 2)
    CheckpointDirectory(tmp_path / "root", 0, 2).close()
    directory.close()
    CheckpointDirectory(tmp_path / "root", 1, 2).close()


def test_checkpoint_comes_back_as_it_was(tmp_path):
    directory, (path,) = written(tmp_path)
    assert directory.models() == [7]
    found, damaged = directory.newest(7)
    assert damaged == []
    assert (found.path, found.model, found.clock) == (path, 7, 10)
    assert found.description == model_of(150)
    assert found.shards == shards_of(10)
    assert found.incarnations == INCARNATIONS


def test_the_newest_are_kept_and_the_newest_is_used(tmp_path):
    directory, paths = written(tmp_path, clocks=(10, 20, 30, 1000))
    assert sorted(directory.path.iterdir()) == paths[-KEPT:]
    assert directory.newest(7)[0].clock == 1000


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "cannot be read"),
        (lambda data: data[:10], "less than any checkpoint"),
        (lambda data: flip(data, 0), "is no checkpoint"),
        (lambda data: flip(data, 7), "is of format"),
        (lambda data: flip(data, 12), "header whose checksum"),
        (lambda data: flip(data, 11), "header alone"),
        (lambda data: flip(data, 20), "header whose checksum"),
        (lambda data: data[:-1], "bytes of arrays, expected"),
        (lambda data: data + b"x", "bytes of arrays, expected"),
        (lambda data: flip(data, len(data) - 1), "array 3 of shard 1"),
        (lambda data: flip(data, len(data) - 65), "array 1 of shard 1"),
        (lambda data: flip(data, len(data) - 964), "array 0 of shard 1"),
    ],
)
def test_damage_is_found_named_and_the_older_one_used(tmp_path, damage, reason):
    directory, (old, new) = written(tmp_path, clocks=(10, 20))
    new.write_bytes(damage(new.read_bytes()))
    found, damaged = directory.newest(7)
    assert found.path == old
    assert found.shards == shards_of(10)
    (error,) = damaged
    assert str(new) in str(error)
    assert reason in str(error)
    old.write_bytes(b"")
    with pytest.raises(PsCheckpointError, match="there is no older one"):
        directory.newest(7)


def test_a_damaged_file_takes_no_place_of_a_good_one(tmp_path):
    directory, (_, damaged) = written(tmp_path, clocks=(10, 20))
    damaged.write_bytes(b"")
    assert directory.newest(7)[0].clock == 10
    directory.write(7, model_of(150), 15, [0, 2], shards_of(15), INCARNATIONS)
    assert directory.clocks(7) == [15, 10]
    assert len(list(directory.path.iterdir())) == KEPT


def test_who_goes_back_uses_no_newer_file_again(tmp_path):
    directory, _ = written(tmp_path, clocks=(10, 20))
    found = directory.go_back(7, 10)
    assert (found.clock, found.shards) == (10, shards_of(10))
    assert directory.newest(7)[0].clock == 10
    with pytest.raises(PsCheckpointError, match=r"clock-000000000020\.ckpt cannot be read"):
        directory.go_back(7, 20)


def restored(*clocks, may_go_back=True):
    models = [pb.RestoredModel(model=7, name="net", clock=clocks[0], older=clocks[1:])]
    return pb.RestoredReply(models=models if clocks[0] else [], may_go_back=may_go_back)


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([restored(3), restored(3)], {}),
        ([restored(4, 3), restored(3, 2)], {0: {7: 3}}),
        ([restored(3, 2), restored(4, 3), restored(5, 3)], {1: {7: 3}, 2: {7: 3}}),
        ([restored(0), restored(0)], {}),
        ([restored(4, 3), restored(3, may_go_back=False)], {}),
        ([restored(4, 3), restored(0, may_go_back=False)], {}),
    ],
)
def test_servers_continue_from_the_newest_clock_that_all_have(replies, expected):
    assert steps_back(dict(enumerate(replies))) == expected


def test_servers_without_a_common_clock_are_named():
    with pytest.raises(PsCheckpointError, match=r'"net".*server 0: 4, 3; server 2: none.*mixed'):
        steps_back({0: restored(4, 3), 2: restored(0)})


def test_checkpoint_of_another_server_is_refused(tmp_path):
    directory, (path,) = written(tmp_path)
    directory.close()
    other = CheckpointDirectory(tmp_path, 1, 3)
    with pytest.raises(PsCheckpointError, match="num_servers is 2, expected 3"):
        other.read(path)


def test_what_a_killed_writer_has_left_is_removed(tmp_path):
    directory, _ = written(tmp_path)
    partial = directory.path / "model-00000007-clock-000000000099.partial"
    partial.write_bytes(b"half")
    directory.close()
    assert written(tmp_path)[0].newest(7)[0].clock == 10
    assert not partial.exists()


def test_checksum_is_that_of_the_format(tmp_path):
    _, (path,) = written(tmp_path)
    data = path.read_bytes()
    length = int.from_bytes(data[8:12], "little")
    assert data[:8] == b"DMLCPS02"
    assert int.from_bytes(data[12:16], "little") == zlib.crc32(data[16 : 16 + length])


# --- what is printed


@pytest.mark.parametrize(
    ("command", "workers"),
    [
        (["python", "train.py"], 1),
        (["torchrun", "--nproc-per-node", "4", "train.py"], 4),
        (["torchrun", "--nproc_per_node=2", "--nnodes=3", "train.py"], 6),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "t.py"], 2),
        (["torchrun", "--nproc-per-node", "gpu", "t.py"], 1),
    ],
)
def test_workers_of_a_command(command, workers):
    assert workers_of(command) == workers


@pytest.mark.parametrize("end", ["", ", metrics on port 9000"])
def test_ready_line_has_the_address(end):
    line = f"dmlcomm ps: server 0 of 2 listens on [::1]:7000{end}"
    assert READY_LINE.fullmatch(line)[1] == "[::1]:7000"


def test_sizes_for_people():
    assert [format_bytes(n) for n in (0, 999, 1500, 2.5e6, 3e15)] == [
        *("0 B", "999 B", "1.5 kB", "2.5 MB", "3e+03 TB"),
    ]


def test_message_becomes_plain_data():
    status = pb.StatusReply(server=1, models=[pb.ModelStatus(name="m", clocks={0: 5})])
    values = to_dict(status)
    assert values["server"] == 1
    assert values["models"][0]["clocks"] == {0: 5}
    assert values["workers"] == []


def test_rates_are_those_between_the_last_two_readings(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(rates.time, "monotonic", lambda: clock[0])
    read = rates.Rates()
    for clock[0], counters in ((100.0, (0, 7)), (102.0, (10, 7)), (104.0, (70, 3))):
        read.read({"eth0": counters})
    assert read.of("eth0") == (30.0, 0.0)  # the second counter has begun anew
    assert read.of("eth1") == (0.0, 0.0)
    read.read({})
    assert read.of("eth0") == (0.0, 0.0)


# --- hosts that went dark


def test_a_host_answers_as_long_as_its_kernel_does(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert hosts.answers(address)
    assert hosts.answers(address)  # refused
    for error, answers in (
        (TimeoutError(), False),
        (OSError(errno.EHOSTUNREACH, ""), False),
        (OSError(errno.EMFILE, ""), True),  # of this side
    ):
        monkeypatch.setattr(hosts.socket, "create_connection", mock.Mock(side_effect=error))
        assert hosts.answers(address) == answers


@pytest.mark.parametrize(("peer", "patience_s"), [(10.0, 7.0), (4.0, 3.0)])
def test_a_host_may_be_silent_as_long_as_a_peer(monkeypatch, peer, patience_s):
    monkeypatch.setattr(hosts._core, "config", lambda: {"peer_timeout_s": peer})
    assert hosts.patience_s() == patience_s


def test_a_probe_tells_a_host_that_is_dark_and_one_that_is_back(monkeypatch):
    answer = [False]
    monkeypatch.setattr(hosts, "answers", lambda address: answer[0])
    monkeypatch.setattr(hosts, "PROBE_INTERVAL_S", 1e-3)
    probe = hosts.Probe("a:1", patience_s=0.01)
    assert not probe.is_dark()
    eventually(probe.is_dark, "dark")
    answer[0] = True
    eventually(lambda: not probe.is_dark(), "back")
    probe.close()


def test_workers_of_a_dark_host_are_given_up_while_others_are_heard(monkeypatch):
    dark = mock.Mock()
    monkeypatch.setattr(absences, "answers", lambda address: address == "a:1")
    monkeypatch.setattr(absences, "Probe", lambda address, patience_s: dark)
    monkeypatch.setattr(absences, "PROBE_AFTER_S", -1.0)
    away = absences.Absences(1e3)
    for address in ("a:1", "firewall:1"):
        away.learn_whether_it_answers(address)
    eventually(lambda: away._answering == {"a"}, "an answer")
    away.begin(3, "a:2")
    away.begin(4, "firewall:2")
    dark.is_dark.return_value = False
    assert list(away.take_overdue(["b:1"])) == []
    dark.is_dark.return_value = True
    # The network of this server may be cut; and the host's own proxy says nothing.
    assert list(away.take_overdue([])) == list(away.take_overdue(["a:9"])) == []
    assert [worker for worker, _ in away.take_overdue(["b:1"])] == [3]
    assert (len(away), away.end(4), away.end(3)) == (1, True, False)


def test_workers_that_stay_away_for_too_long_are_given_up_but_not_for_the_sleep_of_the_server():
    away = absences.Absences(0.0)
    away.begin(3, "a:1")
    away.forgive(1e3)
    assert list(away.take_overdue([])) == []
    away.begin(3, "a:1")
    ((worker, why),) = away.take_overdue([])
    assert worker == 3
    assert "within 0 s" in why
