"""Ranges of NICs in traces of torch's profiler."""

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import run_ranks
from helpers.traces import expect_within, rows_and_operations

COUNT = 200_000


def _trace(rank, n, folder, ending):
    path = f"{folder}/trace-{rank}.json{ending}"
    dist.all_reduce(torch.ones(COUNT))  # before the block
    with dmlcomm.trace_rails() as rails, torch.profiler.profile() as profiler:
        dist.all_reduce(torch.ones(COUNT))
        dist.broadcast(torch.ones(COUNT), src=0)
    dist.all_reduce(torch.ones(COUNT))
    profiler.export_chrome_trace(path)
    rails.add_to(path)

    rows, operations = rows_and_operations(path)
    sent, received = ({e["name"]: e for e in rows[f"local {way}"]} for way in ("out", "in"))
    assert {"all_reduce #2"} <= sent.keys() <= {"all_reduce #2", "broadcast #3"}
    assert sent.keys() | received.keys() == {"all_reduce #2", "broadcast #3"}
    # Each of two ranks sends as much as it receives: a half of the vector twice, or all of it.
    assert sent["all_reduce #2"]["args"]["bytes"] == 4 * COUNT
    assert received["all_reduce #2"]["args"]["bytes"] == 4 * COUNT
    (outer,) = (e for e in operations if e["name"] == "dmlcomm:all_reduce")
    expect_within(outer, [sent["all_reduce #2"], received["all_reduce #2"]])


def _messages(rank, n):
    counts = (1000, 100_000, 1000, 500_000)
    with dmlcomm.trace_rails() as rails:
        for count in counts:
            for peer in range(1, n):
                if rank == 0:
                    dist.send(torch.ones(count), peer)
                elif rank == peer:
                    dist.recv(torch.ones(count), 0)
    found = [r["bytes"] for r in rails._ranges if r["is_sent"] == (rank == 0)]
    expected = [4 * count for count in counts] * (n - 1 if rank == 0 else 1)
    assert sorted(found) == sorted(expected)


def test_messages_between_two_ranks_are_ranges_of_their_own():
    run_ranks(_messages, 3, env={"DMLCOMM_TRANSPORT": "tcp"})


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_trace_has_ranges_of_each_rail_within_those_of_operations(tmp_path, ending):
    run_ranks(_trace, 2, str(tmp_path), ending, env={"DMLCOMM_TRANSPORT": "tcp"})


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("{}")
    with dmlcomm.trace_rails() as rails:
        pass
    with pytest.raises(ValueError, match="is no trace of torch"):
        rails.add_to(path)
