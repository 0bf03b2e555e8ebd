"""The parameter server's benchmark measures what it says, with results that it checks itself."""

import pytest

from benchmarks.ps import plain_tcp
from benchmarks.ps.cluster import Load, run, run_and_kill


@pytest.mark.parametrize("call", ["push_and_pull", "push_pull"])
def test_workers_measure_and_compare_every_step(call: str) -> None:
    times = run(Load(4096, workers=2, call=call, transport="tcp", repeats=3))
    assert times.wrong == 0
    assert len(times.both_s) == len(times.push_s) == 3
    assert all(both > 0 for both in times.both_s)


def test_no_push_is_lost_when_a_server_is_killed() -> None:
    times = run_and_kill(Load(400_000, 2, "push_pull", "tcp", repeats=40), kill_after_steps=10)
    assert times.wrong == 0
    assert len(times.both_s) == 40


def test_plain_tcp_is_measured_both_ways() -> None:
    assert 0 < plain_tcp.ping_pong_seconds(1024, 5) < 1
    assert 0 < plain_tcp.stream_seconds(3_000_000, 2) < 10
