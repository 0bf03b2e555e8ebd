"""push, pull and clock, on real servers and real connections, with NumPy and with torch."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import dmlcomm
from dmlcomm import errors, prio
from dmlcomm.ps import Client
from helpers.parameter_servers import run_workers, servers
from helpers.waiting import DEADLINE_S

NUMPY_DTYPES = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8"]
SERVERS = [1, 2, 3]


def values(seed, shape, dtype):
    """Small integers: their sums are exact in every type."""
    return np.random.default_rng(seed).integers(0, 8, shape).astype(dtype)


# --- what goes in comes out


@pytest.mark.parametrize("num_servers", SERVERS)
@pytest.mark.parametrize("count", [1, 2, 3, 1001, 300_007])
def test_mean_of_all_workers_comes_back(num_servers, count):
    def train(client):
        client.init("w", np.zeros(count, np.float32))
        return client.push_pull("w", 2 * values(client.worker, count, np.float32))

    expected = sum(values(worker, count, np.float32) for worker in range(2))
    with servers(num_servers, workers=2) as addresses:
        for weights in run_workers(train, 2, addresses):
            np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_every_element_type(dtype):
    def train(client):
        client.init("w", np.zeros((3, 7), dtype), reduce="sum")
        return client.push_pull("w", values(client.worker, (3, 7), dtype))

    with servers(2, workers=2) as addresses:
        for weights in run_workers(train, 2, addresses):
            assert weights.dtype == dtype
            np.testing.assert_array_equal(weights, sum(values(w, (3, 7), dtype) for w in range(2)))


def mixed_state(seed):
    """A state_dict of odd shapes and several types."""
    return {
        "conv.weight": torch.from_numpy(values(seed, (5, 3, 3), np.float32)),
        "conv.bias": torch.from_numpy(values(seed + 1, (5,), np.float32)).bfloat16(),
        "empty": torch.empty(0),
        "norm.num_batches_tracked": torch.tensor(seed),
        "head.weight": torch.from_numpy(values(seed + 2, (7, 11), np.float64)),
        "head.transposed": torch.from_numpy(values(seed + 3, (4, 6), np.float32)).t(),
    }


@pytest.mark.parametrize("num_servers", SERVERS)
def test_state_dict_comes_back_with_its_shapes_and_types(num_servers):
    with servers(num_servers) as addresses, Client(addresses) as client:
        state = mixed_state(0)
        assert client.init("net", state) is not state
        pushed = mixed_state(10)
        client.push_pull("net", pushed, out=state)
        for key, tensor in pushed.items():
            assert state[key].dtype == tensor.dtype
            assert torch.equal(state[key], tensor), key


def test_calls_are_started_with_their_tickets(monkeypatch):
    seen = []
    gradients = np.ones(3, np.float32)
    with servers() as addresses, Client(addresses) as client:
        client.init("w", gradients)
        start = client._operations._start

        def note(what, *arguments, **options):
            seen.append((what.partition(" ")[0], prio.current_ticket()))
            return start(what, *arguments, **options)

        monkeypatch.setattr(client._operations, "_start", note)
        client.push("w", gradients, ticket=1)
        client.push_async("w", gradients, ticket=2).result(DEADLINE_S)
        client.pull("w", staleness=None, ticket=3)
        client.pull_async("w", staleness=None, ticket=4).result(DEADLINE_S)
        client.push_pull("w", gradients, staleness=None, ticket=5)
        client.push_pull_async("w", gradients, staleness=None, ticket=6).result(DEADLINE_S)
        with dmlcomm.ticket(7):
            client.push("w", gradients)
    names = ("push", "push", "pull", "pull", "push_pull", "push_pull", "push")
    assert seen == list(zip(names, range(1, 8), strict=True))


def test_list_and_tuple_come_back_as_lists():
    with servers() as addresses, Client(addresses) as client:
        first = [np.ones(3, np.float32), np.ones((2, 2), np.float64)]
        assert [w.tolist() for w in client.init("w", first)] == [[1] * 3, [[1, 1], [1, 1]]]
        client.push("w", tuple(2 * w for w in first))
        client.clock()
        assert [w.dtype for w in client.pull("w")] == [np.float32, np.float64]


def test_strided_arrays_are_read_and_written():
    with servers() as addresses, Client(addresses) as client:
        wide = np.zeros((4, 10), np.float32)
        view = wide[:, ::3]
        client.init("w", view)
        gradients = np.asfortranarray(values(1, view.shape, np.float32))
        client.push_pull("w", gradients, out=view)
        np.testing.assert_array_equal(view, gradients)
        assert wide[:, 1].tolist() == [0] * 4


def test_narrow_wire_rounds_and_nothing_else():
    exact = torch.tensor([1.0, 2.5, -3.0, 1024.0])
    with servers() as addresses, Client(addresses) as client:
        client.init("w", torch.zeros(4), wire="bf16")
        assert torch.equal(client.push_pull("w", exact), exact)
        assert client.push_pull("w", torch.full((4,), 1.001)).tolist() == [1.0] * 4


# --- first values


@pytest.mark.parametrize("num_servers", [1, 2])
def test_one_worker_provides_the_first_values_and_all_get_them(num_servers):
    def first(client):
        given = torch.full((1001,), float(client.worker))
        returned = client.init("w", given)
        assert torch.equal(returned, given)
        return sorted(set(given.tolist()))

    with servers(num_servers, workers=4) as addresses:
        got = run_workers(first, 4, addresses)
        assert got == [got[0]] * 4
        assert len(got[0]) == 1


def test_worker_that_comes_later_gets_what_training_has_made():
    with servers() as addresses, Client(addresses, worker=0) as client:
        client.init("w", np.zeros(5, np.float32), rule="add")
        for _ in range(3):
            client.push_pull("w", np.ones(5, np.float32))
        with Client(addresses, worker=1) as late:
            assert late.init("w", np.full(5, 9, np.float32), rule="add").tolist() == [3] * 5
            assert late.clock_of("w") == client.clock_of("w") == 3


def test_another_model_of_the_same_name_is_refused_and_both_are_named():
    with servers() as addresses, Client(addresses, worker=0) as client:
        client.init("net", {"w": np.zeros((3, 2), np.float32)}, rule="sgd", lr=0.5)
        with Client(addresses, worker=1) as other:
            with pytest.raises(errors.PsModelError) as refused:
                other.init("net", {"w": np.zeros((4, 2), np.float32)}, rule="sgd", lr=0.5)
            assert "w f32[3, 2]" in str(refused.value)
            assert "w f32[4, 2]" in str(refused.value)
            with pytest.raises(errors.PsModelError, match=r"sgd \(lr=0.5\).*sgd \(lr=0.25\)"):
                other.init("net", {"w": np.zeros((3, 2), np.float32)}, rule="sgd", lr=0.25)


def test_wrong_arguments_are_errors_before_anything_is_sent():
    with servers() as addresses, Client(addresses) as client:
        with pytest.raises(ValueError, match="rule 'sgdd'"):
            client.init("w", np.zeros(3, np.float32), rule="sgdd")
        with pytest.raises(errors.PsModelError, match=r'no model "w" .*call init'):
            client.pull("w")
        client.init("w", [np.zeros(3, np.float32)])
        with pytest.raises(ValueError, match=r"expected f32\[3\], got f32\[4\]"):
            client.push("w", [np.zeros(4, np.float32)])
        with pytest.raises(ValueError, match="a list of 1 tensors, got one tensor"):
            client.push("w", np.zeros(3, np.float32))
        with pytest.raises(TypeError, match="complex"):
            client.init("c", np.zeros(3, np.complex64))
        with pytest.raises(ValueError, match="staleness -1"):
            client.pull("w", -1)
        assert client.pull("w")[0].tolist() == [0, 0, 0]


# --- when pushes count, and what a pull waits for


def test_window_is_applied_when_every_worker_has_closed_it():
    with servers(workers=2) as addresses:
        first, second = (Client(addresses, worker=w) for w in range(2))
        with first, second:
            for client in (first, second):
                client.init("w", np.zeros(3, np.float32), rule="add", reduce="sum")
            first.push("w", np.ones(3, np.float32))
            first.push("w", np.ones(3, np.float32))
            first.clock()
            assert first.pull("w", staleness=None).tolist() == [0] * 3
            assert first.pull("w", staleness=1).tolist() == [0] * 3
            waiting = first.pull_async("w", staleness=0)
            second.push("w", np.full(3, 5, np.float32))
            assert not waiting.done()
            second.clock()
            assert waiting.result(30).tolist() == [7] * 3


@pytest.mark.parametrize("staleness", [1, 3])
def test_worker_gets_no_further_ahead_than_its_staleness(staleness):
    with servers(workers=2) as addresses:
        fast, slow = (Client(addresses, worker=w) for w in range(2))
        with fast, slow:
            for client in (fast, slow):
                client.init("w", np.zeros(3, np.float32), rule="add", reduce="sum")
            for _ in range(staleness):
                fast.push_pull("w", np.ones(3, np.float32), staleness)
            blocked = fast.push_pull_async("w", np.ones(3, np.float32), staleness)
            with pytest.raises(TimeoutError):
                blocked.result(0.2)
            slow.clock()
            assert blocked.result(30)[0] >= 1


def test_without_bound_nobody_waits():
    with servers(workers=2) as addresses, Client(addresses, worker=0) as alone:
        alone.init("w", np.zeros(3, np.float32), apply="push", rule="add")
        for step in range(1, 6):
            weights = alone.push_pull("w", np.ones(3, np.float32), staleness=None)
            assert weights.tolist() == [step] * 3


def test_learning_rate_of_a_push_wins_over_that_of_the_rule():
    with servers() as addresses, Client(addresses) as client:
        client.init("w", np.zeros(2, np.float32), rule="sgd", lr=1.0)
        client.push_pull("w", np.ones(2, np.float32))
        assert client.push_pull("w", np.ones(2, np.float32), lr=0.5).tolist() == [-1.5, -1.5]


def test_futures_end_in_order_and_overlap():
    with servers(2) as addresses, Client(addresses) as client:
        client.init("w", np.zeros(50_000, np.float32), rule="add", apply="push")
        futures = [client.push_async("w", np.ones(50_000, np.float32)) for _ in range(10)]
        weights = client.pull_async("w", None)
        assert [future.result(30) for future in futures] == [None] * 10
        assert set(weights.result(30).tolist()) == {10.0}


def test_urgent_pushes_and_pulls_pass_large_ones_of_their_worker():
    """Servers keep two windows, so the third push of "large" waits for the clocks of worker 1."""
    count = 600_000
    has_passed = threading.Event()

    def train(client):
        for model, size, apply in (("large", count, "clock"), ("small", 3, "push")):
            client.init(model, np.zeros(size, np.float32), rule="add", reduce="sum", apply=apply)
        ones = np.ones(count, np.float32)
        if client.worker == 1:
            assert has_passed.wait(DEADLINE_S)
            for _ in range(3):
                client.clock()
            return client.pull("large")
        for _ in range(2):
            client.push("large", ones)
            client.clock()
        waits = [client.pull_async("large"), client.push_async("large", ones)]
        client.push("small", np.ones(3, np.float32), ticket=0)
        assert client.pull("small", staleness=None, ticket=0).tolist() == [1] * 3
        assert not any(future.done() for future in waits)
        has_passed.set()
        assert set(waits[0].result(DEADLINE_S).tolist()) == {2.0}
        waits[1].result(DEADLINE_S)
        client.clock()
        return client.pull("large")

    with servers(2, workers=2, window_mb=1) as addresses:
        for weights in run_workers(train, 2, addresses):
            assert set(weights.tolist()) == {3.0}


def test_urgent_pushes_pass_a_pull_for_which_another_thread_waits():
    has_passed = threading.Event()

    def train(client):
        for model, apply in (("late", "clock"), ("small", "push")):
            client.init(model, np.zeros(3, np.float32), rule="add", reduce="sum", apply=apply)
        ones = np.ones(3, np.float32)
        if client.worker == 0:
            client.push("late", ones)
            client.clock()
            with ThreadPoolExecutor(1) as pool:
                late = pool.submit(client.pull, "late")
                for _ in range(50):
                    client.push("small", ones, ticket=0)
                assert client.pull("small", staleness=None, ticket=0).tolist() == [50] * 3
                assert not late.done()
                has_passed.set()
                return late.result(DEADLINE_S)
        assert has_passed.wait(DEADLINE_S)
        client.clock()
        return client.pull("late")

    with servers(1, workers=2) as addresses:
        for weights in run_workers(train, 2, addresses):
            assert weights.tolist() == [1] * 3


# --- workers together


def test_barrier_waits_for_all_workers():
    order = []

    def meet(client):
        if client.worker == 1:
            order.append("before")
        client.barrier()
        order.append("after")
        client.barrier()

    with servers(workers=3) as addresses:
        run_workers(meet, 3, addresses)
    assert order == ["before", *["after"] * 3]


def test_barrier_says_who_is_missing():
    with servers(workers=3) as addresses:
        first, second = (Client(addresses, worker=w, timeout_s=0.5) for w in range(2))
        with first, second, pytest.raises(errors.PsTimeoutError) as late:
            first.barrier()
        assert "workers [1] have not come, 1 have not registered yet" in str(late.value)


def test_worker_that_leaves_is_not_waited_for():
    with servers(workers=2) as addresses, Client(addresses, worker=0) as stays:
        with Client(addresses, worker=1) as leaves:
            for client in (stays, leaves):
                client.init("w", np.zeros(3, np.float32))
        assert stays.push_pull("w", np.ones(3, np.float32)).tolist() == [1] * 3
        stays.barrier()


def test_servers_number_workers_that_have_no_number():
    with servers(workers=3) as addresses:
        clients = [Client(addresses, worker=-1) for _ in range(3)]
        try:
            assert sorted(client.worker for client in clients) == [0, 1, 2]
        finally:
            for client in clients:
                client.close()


def test_operation_that_waits_for_others_has_a_deadline():
    with servers(workers=2) as addresses, Client(addresses, worker=0, timeout_s=0.5) as client:
        client.init("w", np.zeros(3, np.float32))
        with pytest.raises(errors.PsTimeoutError, match=r'push_pull of model "w" .* 0.5 s'):
            client.push_pull("w", np.ones(3, np.float32))


def test_deadline_of_later_operations_can_be_replaced():
    with servers(workers=2) as addresses, Client(addresses, worker=0) as client:
        client.init("w", np.zeros(3, np.float32))
        client.set_timeout(0.5)
        with pytest.raises(errors.PsTimeoutError, match=r'push_pull of model "w" .* 0.5 s'):
            client.push_pull("w", np.ones(3, np.float32))
        client.set_timeout(0.25)
        with pytest.raises(errors.PsTimeoutError, match=r"barrier did not pass within 0\.25 s"):
            client.barrier()


def test_closed_client_refuses_and_closes_again():
    with servers() as addresses:
        client = Client(addresses)
        client.init("w", np.zeros(3, np.float32))
        client.close()
        client.close()
        with pytest.raises(errors.PsError, match="closed"):
            client.pull("w")


def test_block_that_raises_waits_for_nobody():
    with servers(workers=2) as addresses:
        with pytest.raises(KeyError), Client(addresses, worker=0) as client:
            client.init("w", np.zeros(3, np.float32))
            future = client.push_pull_async("w", np.ones(3, np.float32))
            raise KeyError("of the caller")
        with pytest.raises(errors.PsError, match="was closed"):
            future.result(0)


def test_threads_may_share_a_client():
    with servers(2) as addresses, Client(addresses) as client:
        client.init("w", np.zeros(1001, np.float32), rule="add", apply="push")

        def push():
            for _ in range(20):
                client.push("w", np.ones(1001, np.float32))

        threads = [threading.Thread(target=push) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(client.pull("w", None).tolist()) == {60.0}
