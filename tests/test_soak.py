"""A few random faults, and what the soak test says when something is wrong."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import soak.__main__ as command
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import clean_environment
from soak import groups, operations, servers, training, worker
from soak.clocks import Clocks
from soak.faults import Event, Failure, SoakError
from soak.growth import Growth
from soak.members import DESCRIPTORS, MEMORY_BYTES, THREADS, Job, Usage

SEED = 3


def test_process_groups_survive_a_few_faults():
    with groups.Round(groups.Setting(3, "tcp"), SEED) as job:
        assert len(list(job.events(3))) == 3


def test_parameter_servers_survive_a_few_faults():
    with servers.Round(servers.Setting(2, 2, "auto", "replicas", 1000), SEED) as job:
        assert len(list(job.events(3))) == 3


def test_a_server_and_a_worker_that_are_killed_at_once_are_survived():
    with servers.Round(servers.Setting(3, 2, "auto", "replicas", 1000), SEED) as job:
        job.faults = lambda: {"kill server and worker": job._kill_server_and_worker}
        assert len(list(job.events(2))) == 2


def test_process_groups_survive_faults_of_their_network(loss_is_possible):
    with groups.Round(groups.IN_LABS[1], SEED) as job:
        chosen = {name: job.faults()[name] for name in ("flap", "one way", "reset")}
        job.faults = lambda: chosen
        assert len(list(job.events(3))) == 3


@pytest.mark.parametrize(
    ("keeps", "fault"),
    [
        ("replicas", "cut off a worker"),
        ("replicas", "cut off a server"),
        ("checkpoints", "one way"),
    ],
)
def test_workers_survive_faults_of_their_network(keeps, fault, loss_is_possible):
    setting = servers.Setting(2, 2, "auto", keeps, 10_007, topology="flat:4,1")
    with servers.Round(setting, SEED) as job:
        chosen = {fault: job.faults()[fault]}
        job.faults = lambda: chosen
        assert len(list(job.events(1))) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_servers_go_on_although_their_disk_is_full():
    with servers.Round(servers.Setting(2, 2, "auto", "checkpoints", 1000), SEED) as job:
        job.faults = lambda: {"full disk": job._full_disk}
        assert len(list(job.events(1))) == 1


def test_a_training_under_ddp_survives_a_few_faults():
    with groups.Round(groups.Setting(2, "tcp", work="training"), SEED) as job:
        assert len(list(job.events(2))) == 2


@pytest.mark.parametrize(
    ("work", "function"), [("shrinking", "shrink_group"), ("reconfiguring", "_reconfigure")]
)
def test_groups_go_on_without_a_killed_rank_and_with_one_in_its_place(work, function):
    if not hasattr(torch.distributed.distributed_c10d, function):
        pytest.skip(f"this torch has no {function}")
    with groups.Round(groups.Setting(3, "tcp", work=work), SEED) as job:
        job.faults = lambda: {"kill": job._go_on_without}
        assert len(list(job.events(1))) == 1


@pytest.mark.parametrize("missing", ["shrink_group", "_reconfigure"])
def test_elastic_groups_are_left_out_with_a_torch_that_has_none(missing, monkeypatch, capsys):
    monkeypatch.delattr(torch.distributed.distributed_c10d, missing, raising=False)
    assert command._possible(["ddp", "elastic", "servers"]) == ["ddp", "servers"]
    assert capsys.readouterr().out == f"without elastic groups: this torch has no {missing}\n"
    with pytest.raises(SystemExit, match="none of these kinds of rounds is possible here"):
        command._possible(["elastic"])


def test_workers_behind_proxies_survive_a_few_faults():
    with servers.Round(servers.Setting(1, 2, "auto", "checkpoints", 1000, proxies=2), SEED) as job:
        assert len(list(job.events(2))) == 2


def test_a_clock_that_jumps_is_that_of_one_process_and_of_the_day_alone(tmp_path):
    clocks = Clocks(tmp_path)
    program = "import time; print(time.time(), time.monotonic())"
    environment = clean_environment(**clocks.environment("server 0"))
    clocks.jump("server 0", -3600)
    clocks.environment("server 1")
    begin, begin_of_day = time.monotonic(), time.time()
    seen = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    of_day, since_start = map(float, seen.stdout.split())
    assert begin_of_day <= of_day + 3600 <= time.time()
    assert begin <= since_start <= time.monotonic()


def test_weights_of_a_training_that_are_wrong_are_named():
    ranks = [training.Training(rank) for rank in range(3)]
    for _ in range(20):
        gradients = zip(*(one._inputs(3) for one in ranks), strict=True)
        for row, of_ranks in zip(ranks[0]._model.rows, gradients, strict=True):
            row.data -= sum(of_ranks) / 3
        for one in ranks:
            one._note([0, 1, 2])
        ranks[0]._compare()
    ranks[0]._model.rows[1].data[5] += 1
    with pytest.raises(operations.WrongResultError, match=r"1 of 1000 weights of tensor 1 .* 5 is"):
        ranks[0]._compare()


def test_what_does_not_happen_is_an_error_with_the_stacks_of_all_ranks():
    with (
        groups.Round(groups.Setting(2, "auto"), SEED) as job,
        pytest.raises(SoakError) as caught,
    ):
        job._job.wait("the moon is blue", lambda: False, 0.1)
    assert caught.value.failure is Failure.HANG
    text = str(caught.value)
    assert "the moon is blue: not within 0.1 s" in text
    for rank in range(2):
        _, _, story = text.partition(f"--- rank {rank} (pid")
        assert "soak/rank.py" in story.partition("---")[0]


def test_what_servers_do_not_do_is_an_error_with_their_stacks(monkeypatch):
    setting = servers.Setting(1, 1, "auto", "checkpoints", 1000)
    with servers.Round(setting, SEED) as job:
        monkeypatch.setattr(servers, "eventually", functools.partial(eventually, deadline_s=0.1))
        monkeypatch.setattr(job, "faults", lambda: {"wish": lambda: job._eventually(bool, "more")})
        with pytest.raises(SoakError) as caught:
            next(job.events(1))
    assert caught.value.failure is Failure.HANG
    text = str(caught.value)
    assert text.startswith("wish: more did not happen within 0.1 s")
    assert "soak/worker.py" in text.partition("--- worker 0")[2]
    assert "dmlcomm/ps/commands.py" in text.partition("--- server 0")[2]


def test_weights_that_a_worker_has_seen_of_another_one_do_not_go(tmp_path):
    running = servers.Round(servers.Setting(2, 2, "auto", "replicas", 1000), SEED)
    with Job(tmp_path) as job:
        running._job = job
        job.members["worker 0"] = SimpleNamespace(
            name="worker 0", progress=0, has_ended=False, reports=[("fewer", (1, 2))]
        )
        with pytest.raises(SoakError, match=r"worker 0: fewer: \(1, 2\)") as caught:
            running._go_on("the workers go on")
        job.members.clear()
    assert caught.value.failure is Failure.LOST_UPDATE


def test_a_soak_that_is_interrupted_says_what_it_has():
    soak = subprocess.Popen(
        [sys.executable, "-m", "soak", "--only", "groups", "--faults", "1000"],
        env=clean_environment(PYTHONPATH=str(Path(command.__file__).parents[1])),
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = iter(soak.stdout.readline, "")
    assert any(" 1 " in line for line in lines)
    soak.send_signal(signal.SIGTERM)
    assert [line for line in lines if "0 hangs, 0 lost updates" in line]
    assert soak.wait(DEADLINE_S) == 0


class Rounds:
    """In the place of those of groups: each has a fault that passes, and one that may not."""

    def __init__(self, failures):
        self._failures = iter(failures)

    @contextlib.contextmanager
    def __call__(self, setting, seed):
        yield self

    def processes(self):
        return {}

    def events(self, count):
        yield Event("kill", 1.0)
        if count > 1 and (failure := next(self._failures)) is not None:
            raise SoakError("a reason", failure)


@pytest.mark.parametrize(
    ("failures", "code", "verdict"),
    [
        ([None, None, None], 0, "3 faults: 0 wrong sums, 0 hangs, 0 lost updates"),
        ([Failure.HANG, None], 1, "2 faults: 0 wrong sums, 1 hangs, 0 lost updates"),
    ],
)
def test_failures_are_counted_and_the_exit_code_tells_of_them(
    monkeypatch, capsys, failures, code, verdict
):
    monkeypatch.setattr(command, "_round", Rounds(failures))
    monkeypatch.setattr("sys.argv", ["soak", "--only", "groups", "--faults", "3"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == code
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(verdict)


def test_result_that_is_wrong_is_named():
    call = operations.Call("all_reduce", 0, 5, torch.float32, 0, 1, 7, True)
    right = operations.data(call, 0)
    wrong = right.clone()
    operations._finish(call, operations.Started([], right, right), 0)
    wrong[3] += 1
    with pytest.raises(operations.WrongResultError, match=r"all_reduce.* 1 of 5 .* element 3 is"):
        operations._finish(call, operations.Started([], wrong, right), 0)


class Reports(list):
    """In the place of a link."""

    def report(self, kind, value):
        self.append(kind)

    def wrong(self, failure, text):
        self.append(failure)


@pytest.mark.parametrize(
    ("elements", "most", "said"),
    [
        ([5, 5], 0, []),
        ([6, 5], 0, [Failure.DOUBLED_UPDATE]),
        ([6, 5], 4, []),  # 3 and a late one, and 2 since
        ([5, 4], 0, ["dip"]),
        ([5, 4], 4, ["dip"]),
    ],
)
def test_pushes_that_are_lost_or_applied_twice_are_seen(elements, most, said):
    reports = Reports()
    census = worker.Census(np.array([3, 3]), most)
    census.compare(reports, 2, np.array(elements))
    assert reports == said


@pytest.mark.parametrize(
    ("descriptors", "megabytes", "said"),
    [
        (lambda i: 10 + i % 7, lambda i: 100 + 50 * (i < 5), ""),  # it varies, and gets smaller
        (lambda i: 10 + i // 5, lambda i: 100, r"holds more and more: \+7.* descriptors"),
        (lambda i: 10, lambda i: 100 + 3 * i, r"\+0.0 threads, \+\d{3}.* MB"),
    ],
)
def test_growth_of_a_process_that_lives_long_is_seen(descriptors, megabytes, said):
    growth = Growth()
    for i in range(60):
        growth.add("server 0", 1, Usage(descriptors(i), 5, megabytes(i) << 20))
        growth.add("worker 0", i, Usage(i, i, i << 30))  # each is another process
    assert [line.partition(" (")[0] for line in growth.report()] == ["server 0"]
    with pytest.raises(SoakError, match=said) if said else contextlib.nullcontext():
        growth.check()


def test_usage_that_grows_is_seen():
    before = Usage(0, 0, 0)
    assert not Usage(DESCRIPTORS, THREADS, MEMORY_BYTES).has_grown_from(before)
    assert Usage(DESCRIPTORS + 1, 0, 0).has_grown_from(before)
    assert Usage(0, THREADS + 1, 0).has_grown_from(before)
    assert Usage(0, 0, MEMORY_BYTES + 1).has_grown_from(before)
