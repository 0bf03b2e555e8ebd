"""What torch's flight recorder shows of dmlcomm's calls."""

import json
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import dmlcomm
from helpers import eventually, run_ranks

SHAPE = (4, 3)


@pytest.fixture(autouse=True)
def _needs_a_recorder_per_backend():
    from dmlcomm import _c10d

    if not _c10d.RECORDS_FLIGHTS:
        pytest.skip("this torch has flight recorders for its own backends alone")


def _dump() -> dict[str, Any]:
    return json.loads(c10d._dump_fr_trace_json(backend="dmlcomm"))


def _entries() -> list[dict[str, Any]]:
    return _dump().get("entries", [])


def _functions(entry: int) -> list[str]:
    """Those on the stack of an entry, the innermost first."""
    trace = pickle.loads(c10d._dump_fr_trace(backend="dmlcomm"))
    return [frame["name"] for frame in trace["entries"][entry]["frames"]]


def _calls(rank, n):
    tensor = torch.ones(SHAPE)
    dist.all_reduce(tensor)
    dist.all_gather([torch.empty(SHAPE) for _ in range(n)], tensor)
    dist.barrier()
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return _dump()


def test_each_call_is_one_completed_entry():
    for rank, dump in enumerate(run_ranks(_calls, 2)):
        entries = dump["entries"]
        message = "send 0->1" if rank == 0 else "recv 1<-0"
        names = [entry["profiling_name"] for entry in entries]
        assert names == [
            f"dmlcomm:{name}" for name in ("all_reduce", "all_gather", "barrier", message)
        ]
        assert [entry["state"] for entry in entries] == ["completed"] * 4
        assert all(entry["retired"] for entry in entries)
        assert [entry["is_p2p"] for entry in entries] == [False, False, False, True]
        assert [entry["collective_seq_id"] for entry in entries] == [1, 2, 3, 3]
        assert [entry["p2p_seq_id"] for entry in entries] == [0, 0, 0, 1]
        assert entries[1]["input_sizes"] == [list(SHAPE)]
        assert entries[1]["output_sizes"] == [list(SHAPE)] * 2
        assert entries[1]["output_dtypes"] == ["Float"] * 2
        (status,) = dump["pg_status"].values()
        assert status["last_completed_collective"] == "3"


def _every_kind(rank, n):
    whole, part = torch.ones(n), torch.ones(1)
    parts = list(torch.ones(n, 1))
    dist.broadcast(part, 0)
    dist.all_reduce(torch.eye(2).to_sparse())
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
    dist.reduce(part, 0)
    dist.all_gather_into_tensor(whole, part)
    dist.gather(part, parts if rank == 0 else None, 0)
    dist.scatter(part, parts if rank == 0 else None, 0)
    dist.reduce_scatter(part, parts)
    dist.reduce_scatter_tensor(part, whole)
    dist.all_to_all_single(torch.empty(n), whole)
    dist.all_to_all(list(torch.empty(n, 1)), parts)
    with dist._coalescing_manager():
        dist.all_reduce(whole)
        dist.all_reduce(part)
    if rank == 0:
        dist.recv(part)
    else:
        dist.send(part, 0)
    return _entries()


def test_torchs_analyser_reads_every_kind_of_call():
    from torch.distributed.flight_recorder.components.types import Op

    for entries in run_ranks(_every_kind, 2):
        kinds = [Op(entry, {"all": {0, 1}}, "all").type for entry in entries]
        assert len(kinds) == 13
        assert kinds[-1] in ("send", "recv")
        assert {entry["state"] for entry in entries} == {"completed"}


def _groups(rank, n):
    pair = dist.new_group([0, 2], group_desc="pair")
    if rank in (0, 2):
        dist.all_reduce(torch.ones(1), group=pair)
    dist.all_reduce(torch.ones(1))
    return _dump()


def test_groups_are_told_apart():
    for rank, dump in enumerate(run_ranks(_groups, 3)):
        ranks_of = {group["desc"]: group["ranks"] for group in dump["pg_config"].values()}
        assert ranks_of.pop("default_pg") == "[0, 1, 2]"
        assert ranks_of == ({} if rank == 1 else {"pair": "[0, 2]"})
        groups = [entry["process_group"][1] for entry in dump["entries"]]
        assert groups == (["default_pg"] if rank == 1 else ["pair", "default_pg"])
        assert len({entry["pg_id"] for entry in dump["entries"]}) == len(groups)


def _wait_for_the_other(tensor):
    dist.all_reduce(tensor)


def _late(rank, n):
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(SHAPE)
    if rank == 1:
        store.wait(["seen"])
        dist.all_reduce(tensor)
        return None
    waiting = threading.Thread(target=_wait_for_the_other, args=[tensor])
    waiting.start()
    eventually(
        lambda: _entries() and "_wait_for_the_other" in _functions(0), "the stack is in the entry"
    )
    (entry,) = _entries()
    store.set("seen", "")
    waiting.join()
    return entry["state"], entry["retired"], _entries()[0]["state"]


def test_a_call_that_waits_for_long_shows_where():
    assert run_ranks(_late, 2)[0] == ("scheduled", False, "completed")


def _nobody_waits(rank, n):
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["seen"])
    work = dist.all_reduce(torch.ones(SHAPE), async_op=True)
    functions = _functions(0)
    state = _entries()[0]["state"]
    if rank == 0:
        store.set("seen", "")
    eventually(lambda: _entries()[0]["state"] == "completed", "the call is completed")
    work.wait()
    return "_nobody_waits" in functions, state


def test_an_asynchronous_call_has_a_stack_and_completes_by_itself():
    has_stack, state = run_ranks(_nobody_waits, 2)[0]
    assert has_stack
    assert state == "scheduled"


def _leaves(rank, n):
    """As a signal handler that raises does: nobody waits for a blocking call any more."""
    options = dist.AllreduceOptions()
    options.asyncOp = False
    tensor = torch.ones(SHAPE)
    dist.group.WORLD.allreduce([tensor], options)
    dist.barrier()
    eventually(lambda: _entries()[0]["state"] == "completed", "the call is completed")


def test_a_blocking_call_that_is_left_completes():
    run_ranks(_leaves, 2)


def _fails(rank, n):
    if rank == 1:
        dmlcomm.abort(reason="enough")
        return None
    with pytest.raises(dmlcomm.CommError):
        dist.all_reduce(torch.ones(SHAPE))
    return _entries()[-1]["state"]


def test_a_failed_call_does_not_look_completed():
    assert run_ranks(_fails, 2)[0] == "scheduled"


def _many(rank, n):
    works = [dist.all_reduce(torch.ones(SHAPE), async_op=True) for _ in range(10)]
    for work in works:
        work.wait()
    c10d._reset_fr_trace(backend="dmlcomm")
    after_reset = _entries()
    for _ in range(6):
        dist.all_reduce(torch.ones(SHAPE))
    entries = _entries()
    return after_reset, [(entry["collective_seq_id"], entry["state"]) for entry in entries]


def test_the_newest_calls_stay():
    environment = {"TORCH_FR_BUFFER_SIZE": "4"}
    expected = [(number, "completed") for number in (13, 14, 15, 16)]
    for after_reset, entries in run_ranks(_many, 2, env=environment):
        assert after_reset == []
        assert entries == expected


def test_nothing_is_recorded_where_that_is_switched_off():
    for dump in run_ranks(_calls, 2, env={"TORCH_FR_BUFFER_SIZE": "0"}):
        assert not dump.get("entries")
