"""Which ranks of a group combine CUDA tensors by NCCL: those of hosts that are all alike."""

import json
from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from dmlcomm import _core
from dmlcomm.backends.hostwise import Gpu, find_places, join


def gpus(hosts, **changes):
    """Of ranks on these hosts, by rank: "a0" is GPU 0 of host a. Changes are to the last one."""
    found = [Gpu(host[0], host[1], "2.30.7") for host in hosts.split()]
    return [*found[:-1], replace(found[-1], **changes)]


@pytest.mark.parametrize(
    ("hosts", "rank", "inside", "across"),
    [
        ("a0 a1 b0 b1", 0, (0, 1), (0, 2)),
        ("a0 a1 b0 b1", 3, (2, 3), (1, 3)),
        ("a0 b0 a1 b1", 2, (0, 2), (2, 3)),
        ("a0 a1 a2 b5 b6 b7 c1 c0 c2", 7, (6, 7, 8), (1, 4, 7)),
        ("a0 a1", 1, (0, 1), (1,)),
        ("a0 b0", 1, (), ()),
    ],
)
def test_hosts_with_equally_many_gpus(hosts, rank, inside, across):
    places = find_places(gpus(hosts), rank)
    assert (places.inside, places.across, places.obstacle) == (inside, across, "")


@pytest.mark.parametrize("setting", ["auto", "always"])
@pytest.mark.parametrize(
    ("found", "obstacle"),
    [
        (gpus("a0 a1 b0"), "hosts have unequal numbers of ranks: 1, 2"),
        (gpus("b0 b1 a0 a0"), "some of ranks 2, 3 share a GPU"),
        (gpus("a0 a1", nccl=""), "torch on rank 1 has no NCCL"),
        (gpus("a0 a1", nccl="2.29"), "ranks 0, 1 have different versions of NCCL"),
    ],
)
def test_other_groups_do_without_or_are_refused_on_all_ranks(
    found, obstacle, setting, caplog, monkeypatch
):
    config = {**_core.config(), "cuda_nccl": setting}
    monkeypatch.setattr(_core, "config", lambda: config)
    texts = [json.dumps(asdict(gpu)) for gpu in found]
    for rank in range(len(found)):
        joined = join(texts, rank, None, "the group", range(len(found)), timedelta(seconds=1))
        assert (joined.group, joined.inside, joined.across) == (None, (), ())
        assert (f"always, but {obstacle}" in joined.refusal) == (setting == "always")
        assert bool(joined.refusal) == (setting == "always")
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [obstacle in record.message for record in warnings] == [True] * (setting == "auto")
