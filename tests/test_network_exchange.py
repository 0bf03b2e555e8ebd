"""Ranks tell each other about their hosts, through a store that is a dictionary here."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from dmlcomm.bml.specification import TopologyError
from dmlcomm.network.exchange import PREFIX, exchange
from dmlcomm.network.facts import Facts, FactsError, decode, encode
from dmlcomm.rail import Rail

RAIL = Rail("eth0", "10.0.0.1", 24, has_carrier=False, speed_mbps=10_000)


class DictStore:
    def __init__(self):
        self.values = {}
        self.lock = threading.Lock()

    def set(self, key, value):
        with self.lock:
            self.values[key] = value.encode()

    def add(self, key, amount):
        with self.lock:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def multi_get(self, keys):
        with self.lock:
            return [self.values[key] for key in keys]

    def check(self, keys):
        with self.lock:
            return all(key in self.values for key in keys)


def facts_of(rank, **changes):
    values = {"host_id": f"id{rank}", "host_name": f"host{rank}", "rails": (RAIL,)}
    return Facts(**(values | {"network": "auto"} | changes))


def exchange_all(own, store_of=None):
    """What every rank gets: facts, or the exception."""
    shared = DictStore()

    def one(rank):
        try:
            store = store_of(rank) if store_of else shared
            return exchange(store, rank, len(own), own[rank], timeout_s=10)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(own)) as pool:
        return list(pool.map(one, range(len(own))))


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_every_rank_reads_what_every_rank_has_published(size):
    own = [facts_of(rank) for rank in range(size)]
    assert exchange_all(own) == [own] * size


def hash_stores(_):
    return [dist.HashStore()] * 5


def file_stores(folder):
    return [dist.FileStore(str(folder / "store"), 5) for _ in range(5)]


def tcp_stores(_, libuv=True):
    first = dist.TCPStore("localhost", 0, None, True, use_libuv=libuv, wait_for_workers=False)
    return [first, *(dist.TCPStore("localhost", first.port, use_libuv=libuv) for _ in range(4))]


def old_tcp_stores(_):
    return tcp_stores(_, libuv=False)


@pytest.mark.parametrize("stores", [hash_stores, file_stores, tcp_stores, old_tcp_stores])
def test_ranks_meet_in_every_store_of_torch(stores, tmp_path):
    own = [facts_of(rank) for rank in range(5)]
    prefixed = [dist.PrefixStore("group", store) for store in stores(tmp_path)]
    assert exchange_all(own, prefixed.__getitem__) == [own] * 5


def test_a_problem_of_one_rank_is_an_error_of_all():
    own = [facts_of(0), facts_of(1, problem="cluster.yaml cannot be read"), facts_of(2)]
    errors = exchange_all(own)
    assert {type(error) for error in errors} == {TopologyError}
    assert {str(error) for error in errors} == {"rank 1 on host1: cluster.yaml cannot be read"}


def test_different_settings_are_an_error_of_all():
    errors = exchange_all([facts_of(0), facts_of(1), facts_of(2, network="flat")])
    assert len({str(error) for error in errors}) == 1
    assert "rank 0 on host0 has auto, rank 2 on host2 has flat" in str(errors[1])


def test_a_rank_that_does_not_come_is_named():
    store = DictStore()
    with pytest.raises(TimeoutError, match="rank 1, 2 of 3 has not published"):
        exchange(store, 0, 3, facts_of(0), timeout_s=0.05)


def test_a_rank_that_was_started_again_does_not_count_for_two():
    store = DictStore()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="rank 1 of 2"):
            exchange(store, 0, 2, facts_of(0), timeout_s=0.01)
    own = [facts_of(0), facts_of(1)]
    assert exchange(store, 1, 2, own[1], timeout_s=10) == own
    assert exchange(store, 0, 2, own[0], timeout_s=10) == own


def test_the_last_rank_may_die_before_its_word(monkeypatch):
    monkeypatch.setattr("dmlcomm.network.exchange._PATIENCE_S", 0.01)
    store = DictStore()
    own = [facts_of(0), facts_of(1)]
    store.set(f"{PREFIX}/1", encode(own[1]))
    # Who waited for the word would wait for an hour.
    assert exchange(store, 0, 2, own[0], timeout_s=3600) == own


def test_facts_survive_the_store():
    assert decode(encode(facts_of(3)), 3) == facts_of(3)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"version": None},
        {"host_id": 5},
        {"rails": None},
        {"rails": [1]},
        {"rails": [{"interface": "eth0"}]},
        {"problem": None},
    ],
)
def test_malformed_facts_name_the_rank(change):
    values = json.loads(encode(facts_of(0))) | change
    with pytest.raises(FactsError, match="rank 7"):
        decode(json.dumps(values), 7)


@pytest.mark.parametrize(
    "change",
    [
        {"address": "10.0.0.300"},
        {"address": 5},
        {"prefix_length": 33},
        {"prefix_length": "24"},
        {"prefix_length": True},
        {"speed_mbps": "fast"},
        {"interface": None},
    ],
)
def test_malformed_rails_name_the_rank(change):
    values = json.loads(encode(facts_of(0)))
    values["rails"][0] |= change
    with pytest.raises(FactsError, match="rank 7"):
        decode(json.dumps(values), 7)


@pytest.mark.parametrize("text", ["", "[]", "no JSON", b"\xff", "{}"])
def test_what_are_no_facts_names_the_rank(text):
    with pytest.raises(FactsError, match="rank 7"):
        decode(text, 7)
