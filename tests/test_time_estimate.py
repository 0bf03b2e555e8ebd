"""The estimate of a block of collectives, by torch's own interface to it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from helpers import run_ranks

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "_time_estimator"), reason="this torch has no estimates"
)


def _estimate(*calls):
    with dist._time_estimator(device=torch.device("cpu")) as estimate:
        for call in calls:
            call()
    return estimate.estimated_time


def _estimates(rank, n):
    dist.barrier()  # the ranks find out what memory they share
    values = torch.full((1 << 20,), float(rank + 1))
    strided = torch.arange(8.0)[::2]
    if rank == 0:  # the others do not: nothing is sent, and no collective counts
        large = _estimate(lambda: dist.all_reduce(values))
        small = _estimate(lambda: dist.all_reduce(values[:16]))
        assert 0 < small < large
        twice = _estimate(lambda: dist.all_reduce(values), lambda: dist.all_reduce(values))
        assert twice == pytest.approx(2 * large, rel=1e-4)
        short = _estimate(lambda: dist.send(values[:16], dst=1))
        assert 0 < short < _estimate(lambda: dist.send(values, dst=1))
        in_parts = _estimate(lambda: dist.all_to_all_single(torch.empty(64), torch.ones(64)))
        assert 0 < in_parts < large
        _estimate(lambda: dist.broadcast(strided, src=1))
        _estimate(lambda: dist.all_reduce(values, op=dist._make_nccl_premul_sum(3.0)))
    assert values.tolist() == [rank + 1.0] * values.numel()
    assert strided.tolist() == [0, 2, 4, 6]
    dist.all_reduce(values)
    assert values[0].item() == sum(range(1, n + 1))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_an_estimate_starts_nothing(transport):
    run_ranks(_estimates, 2, env={"DMLCOMM_TRANSPORT": transport})


def _estimates_of_one_thread(rank, n):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with pytest.raises(Exception, match="has not started"):
        backend._end_time_estimate()
    backend._start_time_estimate()
    with pytest.raises(Exception, match="another one of this group has not ended"):
        backend._start_time_estimate()
    values = torch.ones(3)
    with ThreadPoolExecutor(1) as other:
        other.submit(dist.all_reduce, values).result()
    assert values.tolist() == [n] * 3
    with pytest.raises(RuntimeError, match="no estimate of sparse tensors"):
        dist.all_reduce(torch.eye(2).to_sparse())
    assert backend._end_time_estimate() == 0


def test_other_threads_go_on_and_what_cannot_be_estimated_is_refused():
    run_ranks(_estimates_of_one_thread, 2)
