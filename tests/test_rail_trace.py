"""Ranges of NICs in traces of torch's profiler."""

import gzip
import json

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import run_ranks

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

    with (gzip.open if ending else open)(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    rows = {
        e["tid"]: e["args"]["name"]
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"].startswith("dmlcomm ")
    }
    found = [e for e in events if e.get("cat") == "dmlcomm"]
    sent = {e["name"]: e for e in found if rows[e["tid"]] == "dmlcomm local out"}
    received = {e["name"]: e for e in found if rows[e["tid"]] == "dmlcomm local in"}
    assert {"all_reduce #2"} <= sent.keys() <= {"all_reduce #2", "broadcast #3"}
    assert sent.keys() | received.keys() == {"all_reduce #2", "broadcast #3"}
    # Each of two ranks sends as much as it receives: a half of the vector twice, or all of it.
    assert sent["all_reduce #2"]["args"]["bytes"] == 4 * COUNT
    assert received["all_reduce #2"]["args"]["bytes"] == 4 * COUNT
    (outer,) = (e for e in events if e["name"] == "dmlcomm:all_reduce")
    for inner in (sent["all_reduce #2"], received["all_reduce #2"]):
        # The clocks of profiler and rails are read apart: half a millisecond for that.
        assert inner["ts"] > outer["ts"] - 500
        assert inner["ts"] + inner["dur"] < outer["ts"] + outer["dur"] + 500


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
