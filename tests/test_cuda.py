"""CUDA tensors on a real GPU, which the ranks share; the results are compared with the CPU's.

What needs no GPU is in test_cuda_calls.py and csrc/tests/staging_test.cc.
"""

import json
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from dmlcomm.backends import hostwise
from helpers import Expectations, eventually, run_ranks
from helpers.values import FLOATS, Op, ops_of, reduced, value

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU for CUDA"),
    pytest.mark.alone,
]

# Nothing, around a part of 512 KiB (2 ranks) and more than the ring of four holds.
COUNTS = [0, 1, 1001, 131_072, 131_073, 1_000_003]
DTYPES = [*FLOATS, torch.int32, torch.int64, torch.bool]
ENVIRONMENT = {"DMLCOMM_CUDA_CHUNK_BYTES": str(1 << 18)}


def run(function, n, *args, nccl="never", **options):
    env = {**ENVIRONMENT, "DMLCOMM_CUDA_NCCL": nccl}
    return run_ranks(function, n, *args, env=env, deadline_s=180, **options)


def reductions(rank, n):
    expect = Expectations()
    for dtype in DTYPES:
        for op in ops_of(dtype):
            for count in COUNTS if dtype == torch.float32 else (n + 1, 131_073):
                expected = reduced(op, n, count, dtype)
                tensor = value(rank, count, dtype).cuda()
                dist.all_reduce(tensor, op=op)
                expect.equal(tensor.cpu(), expected, "all_reduce", op, dtype, count)
                tensor = value(rank, count, dtype).cuda()
                dist.reduce(tensor, n - 1, op=op)
                if rank == n - 1:
                    expect.equal(tensor.cpu(), expected, "reduce", op, dtype, count)
                parts = value(rank, count, dtype).cuda().repeat(n)
                output = torch.empty(count, dtype=dtype, device="cuda")
                dist.reduce_scatter_tensor(output, parts, op=op)
                expect.equal(output.cpu(), expected, "reduce_scatter", op, dtype, count)
    expect.check()


def movements(rank, n):
    expect = Expectations()
    for count in COUNTS:
        own = [value(r, count, torch.float32) for r in range(n)]
        tensor = own[rank].cuda()
        dist.broadcast(tensor, n - 1)
        expect.equal(tensor.cpu(), own[n - 1], "broadcast", count)
        whole = torch.full((n * count,), -1.0, device="cuda")
        dist.all_gather_into_tensor(whole, own[rank].cuda())
        expect.equal(whole.cpu(), torch.cat(own), "all_gather_into_tensor", count)
        uneven = [torch.empty(count // (r + 1), device="cuda") for r in range(n)]
        dist.all_gather(uneven, own[rank][: count // (rank + 1)].cuda())
        for r in range(n):
            expect.equal(uneven[r].cpu(), own[r][: count // (r + 1)], "all_gather", count, r)
        dist.all_to_all_single(whole, own[rank].cuda().repeat(n))
        expect.equal(whole.cpu(), torch.cat(own), "all_to_all_single", count)
        gathered = [torch.empty(count, device="cuda") for _ in range(n)] if rank == 0 else None
        dist.gather(own[rank].cuda(), gathered)
        output = torch.empty(count, device="cuda")
        dist.scatter(output, gathered)
        expect.equal(output.cpu(), own[rank], "scatter of what was gathered", count)
    expect.check()


def messages(rank, n):
    before, after = (rank - 1) % n, (rank + 1) % n
    for count in COUNTS:
        sent = dist.isend(value(rank, count, torch.float32).cuda(), after, tag=3)
        output = torch.empty(count, device="cuda")
        dist.recv(output, before, tag=3)
        sent.wait()
        assert torch.equal(output.cpu(), value(before, count, torch.float32))
        # From a GPU to memory of the host.
        host = torch.empty(count)
        operations = [
            dist.P2POp(dist.irecv, host, before),
            dist.P2POp(dist.isend, output, after),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.equal(host, value((rank - 2) % n, count, torch.float32))


def other_layouts(rank, n):
    strided = value(rank, 12, torch.float32).cuda().reshape(3, 4).t()
    dist.all_reduce(strided)
    expected = reduced(Op.SUM, n, 12, torch.float32).reshape(3, 4).t()
    assert torch.equal(strided.cpu(), expected)
    several = [torch.full((5,), float(rank + i), device="cuda") for i in range(3)]
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as works:
        for tensor in several:
            dist.all_reduce(tensor)
    works.wait()
    assert [t[0].item() for t in several] == [sum(range(n)) + n * i for i in range(3)]
    for dtype in (torch.float32, torch.bfloat16):
        options = dist.AllreduceOptions()
        options.reduceOp = dist._make_nccl_premul_sum(0.5)
        tensor = value(rank, 1000, dtype).cuda()
        dist.group.WORLD.allreduce([tensor], options).wait()
        expected = (reduced(Op.SUM, n, 1000, dtype) * 0.5).to(dtype)
        assert torch.equal(tensor.cpu(), expected)
    indices, values = torch.tensor([[rank, rank + 1]]), torch.tensor([1.0, 2.0])
    sparse = torch.sparse_coo_tensor(indices, values, (n + 1,)).cuda()
    dist.all_reduce(sparse)
    total = sum(
        torch.sparse_coo_tensor(torch.tensor([[r, r + 1]]), values, (n + 1,)).to_dense()
        for r in range(n)
    )
    assert torch.equal(sparse.to_dense().cpu(), total)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("function", [reductions, movements, messages, other_layouts])
def test_results_are_those_of_the_cpu(function, world_size):
    run(function, world_size)


# What a stream has to do for half a second, at 2 GHz.
BUSY_CYCLES = 1_000_000_000


def streams(rank, n):
    # The first call of a kernel may wait for all streams.
    warm = torch.full((1_000_000,), 1.0, device="cuda")
    warm += 1
    torch.cuda._sleep(1)
    dist.all_reduce(warm, async_op=True).get_future().then(lambda done: done.value()[0] * 2).wait()
    torch.add(warm, 1).unique()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = torch.full((1_000_000,), float(rank), device="cuda")
        torch.cuda._sleep(BUSY_CYCLES)
        tensor += 1
        work = dist.all_reduce(tensor, async_op=True)
        future = work.get_future().then(lambda done: done.value()[0] * 2)
        assert work.wait() is True
        assert not side.query(), "the stream was done before wait() returned"
        assert future.done()
        doubled = future.wait()
        result = tensor + 1
    assert not work.is_completed()
    side.synchronize()
    total = sum(range(n)) + n
    assert result.unique().tolist() == [total + 1]
    torch.cuda.synchronize()
    assert doubled.unique().tolist() == [2 * total]
    eventually(work.is_completed, "the end of the operation on the GPU")
    work.wait(timedelta(seconds=30))
    # The allocator does not give away memory that is still on its way.
    for _ in range(20):
        temporary = torch.ones(300_000, device="cuda")
        pending = dist.all_reduce(temporary, async_op=True)
        del temporary
        torch.zeros(300_000, device="cuda")
        pending.wait()


def test_waiting_blocks_the_stream_and_not_the_thread():
    run(streams, 2)


def failing(rank, n):
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == 1:
        dmlcomm.abort(reason="the test wants it")
        return
    work = dist.all_reduce(tensor, async_op=True)
    with pytest.raises(dmlcomm.AbortedError, match="the test wants it"):
        work.wait(timedelta(seconds=30))
    assert torch.isnan(tensor).all()
    with pytest.raises(dmlcomm.AbortedError):
        dist.all_reduce(tensor)


def test_a_failure_leaves_nan_and_is_raised_by_later_waits():
    run(failing, 2)


def graph(rank, n):
    tensor = torch.ones(10, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    recording = torch.cuda.graph(recorded)
    with pytest.raises(RuntimeError, match="records a CUDA graph"), recording:
        dist.all_reduce(tensor)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15),
    reason="this torch does not tell backends that a stream records a graph",
)
def test_graphs_are_refused():
    run(graph, 2)


def model():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)]
    return torch.nn.Sequential(*layers).cuda()


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(8, 64, generator=generator).cuda() for _ in range(4)]


def train(trained, inputs):
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    for x in inputs:
        optimizer.zero_grad()
        trained(x).square().mean().backward()
        optimizer.step()


def reference(n):
    alone = model()
    train(alone, [torch.cat(parts) for parts in zip(*map(batches, range(n)), strict=True)])
    return [parameter.detach() for parameter in alone.parameters()]


def ddp(rank, n):
    trained = DistributedDataParallel(model(), bucket_cap_mb=0.05)
    train(trained, batches(rank))
    for actual, expected in zip(trained.parameters(), reference(n), strict=True):
        torch.testing.assert_close(actual.detach(), expected)


def fsdp2(rank, n):
    from torch.distributed.fsdp import fully_shard

    trained = model()
    for layer in (trained[0], trained[2], trained):
        fully_shard(layer)
    train(trained, batches(rank))
    for actual, expected in zip(trained.parameters(), reference(n), strict=True):
        torch.testing.assert_close(actual.full_tensor().detach(), expected)


def functional(rank, n):
    from torch.distributed import _functional_collectives as functional_collectives

    group = dist.group.WORLD
    tensor = torch.full((1000,), float(rank), device="cuda")
    total = functional_collectives.all_reduce(tensor, "sum", group)
    gathered = functional_collectives.all_gather_tensor(total + rank, 0, group)
    assert gathered.reshape(n, -1)[:, 0].tolist() == [sum(range(n)) + r for r in range(n)]


@pytest.mark.parametrize("function", [ddp, fsdp2, functional])
def test_training(function):
    run(function, 2)


def beside_nccl(rank, n):
    torch.cuda.set_device(rank)
    for device, backend in (("cpu", "dmlcomm"), ("cuda", "nccl")):
        tensor = value(rank, 1001, torch.float32).to(device)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.cpu(), reduced(Op.SUM, n, 1001, torch.float32))
        assert dist.group.WORLD._get_backend(torch.device(device)).name() == backend
    ddp(rank, n)


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch has no NCCL")
def test_dmlcomm_for_cpu_tensors_alone():
    n = min(torch.cuda.device_count(), 2)  # NCCL refuses ranks that share a GPU
    run(beside_nccl, n, backend="cpu:dmlcomm,cuda:nccl")


def several_gpus(rank, n, per_host):
    torch.cuda.set_device(rank)
    describe = hostwise.describe

    def on_host(device):
        return json.dumps({**json.loads(describe(device)), "host": f"host {rank // per_host}"})

    made = []

    def make_inside(*arguments):
        made.append(make(*arguments))
        return made[-1]

    make = hostwise.make_inside
    hostwise.describe, hostwise.make_inside = on_host, make_inside
    expect = Expectations()
    for dtype in FLOATS:
        for op in (Op.SUM, Op.MAX):
            for count in (1, 1001, 1_000_003):
                tensor = value(rank, count, dtype).cuda()
                dist.all_reduce(tensor, op=op)
                expect.equal(tensor.cpu(), reduced(op, n, count, dtype), op, dtype, count)
    expect.check()
    assert len(made) == 1
    ddp(rank, n)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has not several GPUs")
def test_several_gpus_of_a_host_combine_by_nccl():
    n = torch.cuda.device_count() // 2 * 2
    run(several_gpus, n, n, nccl="always")
    if n >= 4:
        run(several_gpus, n, n // 2, nccl="always")


SCRIPT = """
import torch, torch.distributed as dist, dmlcomm
dist.init_process_group("cuda:dmlcomm", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(10_000_000, device="cuda")
dist.all_reduce(tensor)
kept = dist.all_reduce(tensor, async_op=True)
"""


def test_a_program_ends_although_nobody_destroys_the_group():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)


def threads_of_ranks(rank, n):
    groups = [dist.new_group() for _ in range(2)]
    tensors = [torch.ones(500_000, device="cuda") for _ in groups]
    streams = [torch.cuda.Stream() for _ in groups]
    torch.cuda.synchronize()

    def work(index):
        torch.cuda.set_device(0)
        # On one stream the threads of two ranks could call in different orders.
        with torch.cuda.stream(streams[index]):
            for _ in range(10):
                dist.all_reduce(tensors[index], op=Op.MAX, group=groups[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert all(tensor.unique().tolist() == [1] for tensor in tensors)


def test_groups_of_several_threads():
    run(threads_of_ranks, 2)
