"""all_reduce of a process group through the parameter servers."""

import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dmlcomm import _core, errors
from helpers import run_ranks
from helpers.parameter_servers import ServerProcess, servers
from helpers.ranks import Ranks, report

COUNTS = [1, 7, 4097, 300_001]


def through_servers(addresses, algorithm="all_reduce=ps"):
    return {"DMLCOMM_ALGORITHM": algorithm, "DMLCOMM_PS_SERVERS": addresses}


def values(rank, count, dtype):
    """Small whole numbers: sums of any order are exact in every type."""
    return ((torch.arange(count) + 3 * rank) % 7 + 1).to(dtype)


def _reduce_all(rank, size, dtypes):
    """What differs from the expected result, as text."""
    wrong = []
    for dtype in dtypes:
        for count in COUNTS:
            total = sum(values(r, count, torch.float64) for r in range(size))
            mean = total / size if dtype.is_floating_point else (total / size).trunc()
            # A mean is a product with 1/n, so it rounds twice.
            tolerance = 2 * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
            cases = [(dist.ReduceOp.SUM, total, 0.0), (dist.ReduceOp.AVG, mean, tolerance)]
            for op, expected, rtol in cases:
                tensor = values(rank, count, dtype)
                dist.all_reduce(tensor, op)
                if not torch.allclose(tensor.double(), expected, rtol=rtol, atol=0.0):
                    wrong.append(f"{op} of {count} x {dtype}")
    return wrong


@pytest.mark.parametrize(("num_servers", "ranks"), [(1, 1), (1, 2), (2, 3)])
def test_sums_and_means_of_every_type(num_servers, ranks):
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    dtypes += [torch.int64, torch.int32, torch.uint8]
    with servers(num_servers, workers=ranks) as addresses:
        env = through_servers(addresses)
        assert run_ranks(_reduce_all, ranks, dtypes, env=env) == [[]] * ranks


def _count_and_reduce(rank, _size):
    before = sum(counters.bytes_sent for counters in _rails())
    tensor = torch.full((100_000,), rank + 1.0)
    dist.all_reduce(tensor)
    return tensor.unique().tolist(), sum(counters.bytes_sent for counters in _rails()) - before


def _rails():
    import dmlcomm

    return dmlcomm.rails()


def test_it_is_the_servers_who_add_up():
    with servers(workers=2, transport="tcp") as addresses:
        env = through_servers(addresses, "ps") | {"DMLCOMM_TRANSPORT": "tcp"}
        assert run_ranks(_count_and_reduce, 2, env=env) == [([3.0], 0)] * 2


def _many_at_once(rank, _size):
    tensors = [torch.full((10_000 + i % 3,), float(rank + i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    future = dist.all_reduce(tensors[0], async_op=True).get_future()
    result = future.wait()
    assert result[0].data_ptr() == tensors[0].data_ptr()
    return [tensor.unique().tolist() for tensor in tensors]


def test_many_operations_under_way_keep_their_results_apart():
    with servers(2, workers=2) as addresses:
        results = run_ranks(_many_at_once, 2, env=through_servers(addresses))
    expected = [[2.0 * i + 1] for i in range(20)]
    expected[0] = [2.0]
    assert results == [expected] * 2


def _strided(rank, _size):
    tensor = torch.zeros(4, 6)
    column = tensor.t()[1:5:2]
    column += rank + 1
    dist.all_reduce(column)
    return tensor.tolist()


def test_strided_tensor_gets_its_values_and_keeps_its_neighbours():
    with servers(workers=2) as addresses:
        results = run_ranks(_strided, 2, env=through_servers(addresses))
    assert results == [[[0.0, 3.0, 0.0, 3.0, 0.0, 0.0]] * 4] * 2


def _async_before_receive(rank, _size):
    tensors = [torch.ones(100) for _ in range(8)]
    if rank == 0:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    return [tensor[0].item() for tensor in tensors]


def test_asynchronous_call_waits_for_nobody():
    with servers(workers=2) as addresses:
        results = run_ranks(_async_before_receive, 2, env=through_servers(addresses))
    assert results == [[2.0] * 8] * 2


def _others(rank, size):
    largest = torch.tensor([rank, 5 - rank])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    flag = torch.tensor([rank == 1])
    dist.all_reduce(flag, dist.ReduceOp.SUM)
    number = torch.tensor([1 + 1j * rank])
    dist.all_reduce(number)
    sparse = torch.tensor([0.0, rank]).to_sparse()
    dist.all_reduce(sparse)
    dist.all_reduce(torch.zeros(0))
    subgroup = dist.new_group([0, size - 1])
    everyone = dist.new_group()
    pair = torch.ones(3)
    if rank in (0, size - 1):
        dist.all_reduce(pair, group=subgroup)
    dist.all_reduce(pair, group=everyone)
    return largest.tolist(), flag.item(), number.item(), sparse.to_dense().tolist(), pair.tolist()


def test_what_servers_do_not_do_goes_between_the_ranks():
    with (
        servers(workers=3) as addresses,
        Ranks(_others, 3, env=through_servers(addresses)) as ranks,
    ):
        assert ranks.collect() == [([2, 5], True, 3 + 3j, [0.0, 3.0], [5.0] * 3)] * 3
        log = ranks.ranks[0].log.read_text()
    assert "they do not know operator max" in log
    assert log.count("they do not know elements of torch.bool") == 1
    assert "they do not add up sparse tensors" in log
    assert log.count("is for the default group") == 1


def _too_many_sizes(rank, _size):
    from dmlcomm.backends import server_all_reduce

    server_all_reduce.MAX_KINDS = 3
    tensors = [torch.full((i + 1,), rank + 1.0) for i in range(6)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return [tensor.sum().item() for tensor in tensors]


def test_number_of_models_is_bounded():
    with (
        servers(workers=2) as addresses,
        Ranks(_too_many_sizes, 2, env=through_servers(addresses)) as ranks,
    ):
        assert ranks.collect() == [[3.0 * (i + 1) for i in range(6)]] * 2
        assert ranks.ranks[1].log.read_text().count("which is the limit") == 1


def _train(rank, _size):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(10, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().numpy() for parameter in net.parameters()]


def test_ddp_trains_as_without_servers():
    expected = run_ranks(_train, 2)
    with servers(2, workers=2) as addresses:
        results = run_ranks(_train, 2, env=through_servers(addresses))
    tolerance = 64 * torch.finfo(torch.float32).eps
    for weights in results:
        for mine, theirs in zip(weights, expected[0], strict=True):
            torch.testing.assert_close(
                torch.from_numpy(mine), torch.from_numpy(theirs), rtol=tolerance, atol=tolerance
            )


def _make_group_again(rank, size, path):
    sums = []
    for number in range(2):
        store = dist.FileStore(f"{path}/{number}", size)
        dist.init_process_group("dmlcomm", store=store, rank=rank, world_size=size)
        for count in (5, 6) if number == 0 else (6, 5):
            tensor = torch.full((count,), float(rank + number))
            dist.all_reduce(tensor)
            sums.append(tensor.sum().item())
        dist.destroy_process_group()
    return sums


def test_group_can_be_made_again_on_the_same_servers(tmp_path):
    with servers(2, workers=2) as addresses:
        options = {"env": through_servers(addresses), "make_group": False}
        results = run_ranks(_make_group_again, 2, str(tmp_path), **options)
    assert results == [[5.0, 6.0, 18.0, 15.0]] * 2


# --- what goes wrong ---


def _error_of_group(rank, size, path):
    import dmlcomm  # noqa: F401, registers the backend also where it is not installed

    store = dist.FileStore(f"{path}/store", size)
    with pytest.raises(errors.CommError) as raised:
        dist.init_process_group("dmlcomm", store=store, rank=rank, world_size=size)
    return raised.value.code, str(raised.value)


def test_no_servers_is_an_error_that_names_what_to_set(tmp_path):
    options = {"env": {"DMLCOMM_ALGORITHM": "all_reduce=ps"}, "make_group": False}
    for code, text in run_ranks(_error_of_group, 2, str(tmp_path), **options):
        assert code == "invalid_argument"
        assert "DMLCOMM_PS_SERVERS is not set" in text
        assert "dmlcomm run --servers" in text


def test_servers_for_another_number_of_workers_are_refused(tmp_path):
    with servers(workers=3) as addresses:
        options = {"env": through_servers(addresses), "make_group": False}
        for code, text in run_ranks(_error_of_group, 2, str(tmp_path), **options):
            assert code == "invalid_argument"
            assert "for 3 workers, the group has 2 ranks" in text
            assert "--workers 2" in text


def _until_a_rank_dies(rank, _size):
    dist.all_reduce(torch.ones(1000))
    if rank == 1:
        report("ready")
        dist.recv(torch.ones(1), 2)  # never comes
    with pytest.raises(errors.CommError) as raised:
        for _ in range(1_000_000):
            dist.all_reduce(torch.ones(1000))
    with pytest.raises(errors.CommError):
        dist.all_reduce(torch.ones(1000))
    return type(raised.value).__name__, str(raised.value)


def test_sum_without_a_dead_rank_is_an_error():
    with (
        servers(workers=3) as addresses,
        Ranks(_until_a_rank_dies, 3, env=through_servers(addresses)) as ranks,
    ):
        ranks.wait_for("ready", [1])
        ranks.send_signal(1, signal.SIGKILL)
        results = ranks.collect([0, 2])
    # Who sees it first tells the other one, by whatever way is faster.
    assert {name for name, _ in results} <= {"PeerLostError", "AbortedError"}
    assert any(name == "PeerLostError" for name, _ in results)


def _until_the_server_dies(rank, _size):
    dist.all_reduce(torch.ones(1000))
    report("ready")
    with pytest.raises(errors.CommError) as raised:
        for _ in range(1_000_000):
            dist.all_reduce(torch.ones(1000))
    return type(raised.value).__name__


def test_lost_server_is_an_error():
    with (
        ServerProcess("--workers", "2") as server,
        Ranks(_until_the_server_dies, 2, env=through_servers(server.address)) as ranks,
    ):
        ranks.wait_for("ready")
        server.kill()
        names = set(ranks.collect())
    assert "PeerLostError" in names
    assert names <= {"PeerLostError", "AbortedError"}


def _different_sizes(rank, _size):
    work = dist.all_reduce(torch.ones(10 + rank), async_op=True)
    with pytest.raises(errors.CommError) as raised:
        work.wait()
    return type(raised.value).__name__, str(raised.value)


def test_different_sizes_are_an_error_that_shows_both():
    with servers(workers=2) as addresses:
        results = run_ranks(_different_sizes, 2, env=through_servers(addresses))
    text = dict(results)["CollectiveMismatchError"]
    assert "10" in text
    assert "11" in text


def _with_shorter_timeout(rank, _size, count):
    import dmlcomm

    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(torch.ones(10))
    dmlcomm.set_timeout(timedelta(seconds=1.5))
    if rank == 1:
        store.wait(["rank 0 has seen it"], timedelta(seconds=60))
        return ""
    with pytest.raises(errors.CommTimeoutError) as raised:
        dist.all_reduce(torch.ones(count))
    store.set("rank 0 has seen it", "")
    return str(raised.value)


@pytest.mark.parametrize("count", [10, 11])  # of a size that the servers know, and of a new one
def test_timeout_of_the_group_can_be_replaced(count):
    with servers(workers=2) as addresses:
        text, _ = run_ranks(_with_shorter_timeout, 2, count, env=through_servers(addresses))
    assert "rank 0" in text
    assert "did not end within 1.5 s" in text


def _abort(rank, _size):
    import dmlcomm

    work = None
    if rank == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        dmlcomm.abort("enough")
        with pytest.raises(errors.AbortedError, match="enough"):
            work.wait()
        with pytest.raises(errors.AbortedError, match="enough"):
            dist.all_reduce(torch.ones(10))


def test_abort_ends_what_is_pending():
    with servers(workers=2) as addresses:
        run_ranks(_abort, 2, env=through_servers(addresses))


def test_names_of_the_servers_are_a_legal_algorithm():
    for text in ("ps", "all_reduce=ps", "broadcast=tree,all_reduce=ps"):
        _core.check_algorithm(text)
    assert _core.without_parameter_servers("ps") == ""
    assert _core.without_parameter_servers("all_reduce=ps") == ""
    assert _core.without_parameter_servers("all_reduce=ps,broadcast=tree") == "broadcast=tree"
    assert _core.without_parameter_servers("a=b,all_reduce=ps,c=d") == "a=b,c=d"
    for text in ("", "ring", "all_reduce=ring", "broadcast=ps"):
        assert _core.without_parameter_servers(text) == text
    assert "ps" in _core.algorithms()["all_reduce"]
    with pytest.raises(ValueError, match="all_reduce=ps"):
        _core.check_algorithm("broadcast=ps")
