"""Rows of tables that are pushed and pulled singly, on real servers and real connections."""

import numpy as np
import pytest
import torch

from dmlcomm.ps import Client
from helpers.parameter_servers import run_workers, servers

ROWS = np.ones((1, 2), np.float32)


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_rows_are_pushed_and_pulled_singly(num_servers):
    def train(client):
        table = np.zeros((13, 3), np.float32)
        client.init("table", table, rule="add", reduce="sum", tables=True)
        rows = [client.worker, 12, 5] if client.worker else np.array([0, 12, 12])
        client.push_rows("table", rows, np.ones((3, 3), np.float32))
        client.clock()
        return client.pull_rows("table", [12, 0, 1, 5, 12])[:, 0].tolist()

    with servers(num_servers, workers=2) as addresses:
        assert run_workers(train, 2, addresses) == [[3, 1, 1, 1, 3]] * 2


def test_whole_table_is_set_by_init_and_read_by_rows():
    table = torch.arange(20.0).reshape(10, 2)
    with servers(3) as addresses, Client(addresses) as client:
        client.init("table", table.clone(), tables=True)
        order = torch.randperm(10)
        assert torch.equal(client.pull_rows("table", order), table[order])
        assert client.pull_rows("table", []).shape == (0, 2)


def tables_of(worker):
    """One that is strided, and one of another type; every worker has others."""
    wide = np.zeros((13, 6), np.float32)
    wide[:, ::2] = 100 * worker + np.arange(39).reshape(13, 3)
    return {"wide": wide[:, ::2], "narrow": np.arange(worker, worker + 5).reshape(5, 1)}


@pytest.mark.parametrize("num_servers", [1, 2, 3])
@pytest.mark.parametrize("batch_bytes", [1, 200, 1 << 20])  # a row, some rows, all rows at once
def test_init_gives_all_workers_the_same_tables(monkeypatch, num_servers, batch_bytes):
    monkeypatch.setattr("dmlcomm.ps.worker.tables.BATCH_BYTES", batch_bytes)

    def first(client):
        given = tables_of(client.worker)
        returned = client.init("tables", given, tables=True)
        assert returned["wide"] is given["wide"]
        return given

    with servers(num_servers, workers=2) as addresses:
        got = run_workers(first, 2, addresses)
    provider = int(got[0]["wide"][0, 0]) // 100
    for tables in got:
        for key, table in tables_of(provider).items():
            np.testing.assert_array_equal(tables[key], table)


def test_worker_that_comes_later_gets_the_rows_that_were_pushed():
    with servers(2) as addresses, Client(addresses, worker=0) as client:
        options = {"rule": "add", "apply": "push", "tables": True}
        client.init("table", torch.zeros(6, 2), **options)
        client.push_rows("table", [1, 4], torch.ones(2, 2))
        with Client(addresses, worker=1) as late:
            table = late.init("table", torch.full((6, 2), 9.0), **options)
            assert table[:, 1].tolist() == [0, 1, 0, 0, 1, 0]


def test_tables_are_refused_by_what_is_not_about_rows():
    ones = np.ones((4, 2), np.float32)
    with servers() as addresses, Client(addresses) as client:
        client.init("table", 0 * ones, rule="add", apply="push", tables=True)
        for call in (
            lambda: client.push("table", ones),
            lambda: client.push_async("table", ones),
            lambda: client.pull("table"),
            lambda: client.pull_async("table"),
            lambda: client.push_pull("table", ones),
            lambda: client.push_pull_async("table", ones),
        ):
            with pytest.raises(ValueError, match=r'model "table".*push_rows and pull_rows'):
                call()
        assert client.clock_of("table") == 0
        assert client.pull_rows("table", [3], None).tolist() == [[0, 0]]


@pytest.mark.parametrize("dense", [np.zeros(4, np.float32), np.zeros((4, 2), np.float32)])
def test_dense_models_are_refused_by_what_is_about_rows(dense):
    with servers() as addresses, Client(addresses, worker=0) as client:
        client.init("w", dense.copy())
        reason = r'worker 0: pu.* rows .*model "w".*dense tensors; use push and pull.*tables=True'
        for call in (
            lambda: client.push_rows("w", [1], ROWS),
            lambda: client.pull_rows("w", [1]),
        ):
            with pytest.raises(ValueError, match=reason):
                call()
        assert np.array_equal(client.pull("w"), dense)


@pytest.mark.parametrize(("tables", "expected"), [(1, "0, its only one"), (2, "0 to 1")])
@pytest.mark.parametrize("wrong", [-1, 2])
def test_table_that_is_not_there_is_named(tables, expected, wrong):
    with servers() as addresses, Client(addresses, worker=0) as client:
        client.init("t", [np.zeros((4, 2), np.float32) for _ in range(tables)], tables=True)
        for call in (
            lambda: client.push_rows("t", [1], ROWS, table=wrong),
            lambda: client.pull_rows("t", [1], table=wrong),
        ):
            with pytest.raises(ValueError, match=f"got table {wrong}, expected {expected}"):
                call()
        assert client.pull_rows("t", [1], table=tables - 1).tolist() == [[0, 0]]


def test_wrong_rows_are_refused():
    with servers() as addresses, Client(addresses) as client:
        client.init("table", np.zeros((10, 2), np.float32), tables=True)
        with pytest.raises(ValueError, match="10"):
            client.push_rows("table", [10], np.zeros((1, 2), np.float32))
        with pytest.raises(ValueError, match=r"expected f32\[1, 2\], got f32\[2, 2\]"):
            client.push_rows("table", [1], np.zeros((2, 2), np.float32))
        with pytest.raises(ValueError, match="travel as they are"):
            client.init("narrow", np.zeros((10, 2), np.float32), tables=True, wire="bf16")
        with pytest.raises(ValueError, match="one dimension of integers"):
            client.pull_rows("table", [0.5])
