"""The multi-rank helper itself: results, failures, deadlines. On gloo: it tests nothing else."""

import os
import select
import signal
import subprocess
import threading
import time

import pytest
import torch
import torch.distributed as dist

from helpers import Ranks, RanksFailedError, eventually, report, run_ranks, until_asleep
from helpers.warm_python import warm_command


def _sum(rank, world_size):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()


def _raise_on_rank_1(rank, world_size):
    if rank == 1:
        raise KeyError("a reason")


def _sleep_on_rank_1(rank, world_size):
    if rank == 1:
        report("ready")
        threading.Event().wait()


def _die_on_rank_1(rank, world_size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _report_and_wait(rank, world_size):
    report("ready")
    threading.Event().wait()


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_results_come_in_order_of_rank(world_size):
    expected = sum(range(world_size))
    assert run_ranks(_sum, world_size, backend="gloo") == [expected] * world_size


def test_exception_names_rank_and_reason():
    with pytest.raises(RanksFailedError, match=r"rank 1 [^$]*KeyError: 'a reason'"):
        run_ranks(_raise_on_rank_1, 2, make_group=False)


def test_deadline_dumps_the_stack_of_who_hangs():
    with Ranks(_sleep_on_rank_1, 2, make_group=False) as ranks:
        ranks.wait_for("ready", [1])
        until_asleep(ranks.pid(1))
        ranks.set_deadline(0.1)
        with pytest.raises(RanksFailedError, match=r"rank 1 [^$]*_sleep_on_rank_1[^$]*threads:"):
            ranks.collect()


def test_death_is_an_error():
    with pytest.raises(RanksFailedError, match=r"rank 1 .*died with exit code -9"):
        run_ranks(_die_on_rank_1, 2, make_group=False)


def test_leaving_the_block_kills_every_rank():
    with Ranks(_report_and_wait, 2, make_group=False) as ranks:
        ranks.wait_for("ready")
        pids = [ranks.pid(0), ranks.pid(1)]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def _work_then_pause(rank, world_size):
    report("working")
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
    report("pausing")
    signal.pause()


def test_who_works_is_not_asleep():
    with Ranks(_work_then_pause, 1, make_group=False) as ranks:
        ranks.wait_for("working")
        until_asleep(ranks.pid(0))
        assert ranks.ranks[0].connection.poll(), "it has not come to its pause"


def test_what_never_happens_is_an_error_at_the_deadline():
    assert eventually(lambda: 7, "seven") == 7
    with pytest.raises(AssertionError, match=r"rain did not happen within 0\.1 s"):
        eventually(lambda: None, "rain", 0.1)


def _start_warm(script):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(warm_command(script), **pipes, text=True)


def test_warm_program_has_its_own_input_output_and_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_TEST", "seen")
    script = (
        "import os, sys, torch\n"
        "print(input(), os.getcwd(), os.environ['OF_THE_TEST'], sys.argv, torch.ones(2).tolist())\n"
        "assert __name__ == '__main__', 'not a script'\n"
        "raise KeyError('a reason')\n"
    )
    with _start_warm(script) as process:
        stdout, stderr = process.communicate("hello\n", timeout=60)
    assert stdout == f"hello {tmp_path} seen ['-c'] [1.0, 1.0]\n"
    assert "KeyError: 'a reason'" in stderr
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("script", "code"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9), ("pass", 0)],
)
def test_warm_program_ends_as_the_script_does(script, code):
    with _start_warm(script) as process:
        assert process.wait(60) == code


def test_warm_program_waits_for_threads_and_says_everything():
    script = (
        "import atexit, sys, threading\n"
        "atexit.register(print, 'goodbye', end='')\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()\n"
        "sys.exit('a reason')\n"
    )
    with _start_warm(script) as process:
        assert process.communicate(timeout=60) == ("late\ngoodbye", "a reason\n")
    assert process.returncode == 1


ENDLESS = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("told", flush=True))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_warm_program_passes_signals_on_and_takes_the_script_along():
    with _start_warm(ENDLESS) as process:
        script = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "told\n"
        process.kill()
        assert select.select([script], [], [], 60)[0], "the script lives on"
    os.close(script)
