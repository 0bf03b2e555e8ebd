"""Calls with CUDA tensors where no GPU is: the driver and torch's streams are a stand-in's."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from dmlcomm import _c10d
from dmlcomm.backends import hostwise
from dmlcomm.hooks import QuantizeState, bf16_hook, quantize_hook
from dmlcomm.prio import HookState, comm_hook
from dmlcomm.ps import HookState as PsHookState
from dmlcomm.ps import ps_hook
from helpers import Expectations, Ranks, eventually, meet, report, run_ranks
from helpers.values import reduced, value

CHUNK_BYTES = 1 << 18
# Less than a part, and more than the ring holds.
COUNTS = [0, 5, 600_001]


pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available(),
        reason="CUDA's driver is there, which the stand-in takes the place of",
    ),
    pytest.mark.xdist_group("torch_modules"),
]


@pytest.fixture
def folder(torch_modules):
    """Where the module lies that stands in for CUDA."""
    return torch_modules


def load(folder):
    sys.path.insert(0, folder)
    import fake_cuda

    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # torch.distributed asks
    return fake_cuda


def run(function, n, folder, *args, environment=None, **options):
    env = {"DMLCOMM_CUDA_CHUNK_BYTES": str(CHUNK_BYTES), **(environment or {})}
    return run_ranks(function, n, folder, *args, env=env, **options)


def every_collective(rank, n, folder):
    cuda = load(folder)
    hostwise.describe = None  # nobody meets for NCCL, unless that is asked for
    expect = Expectations()
    for count in COUNTS:
        own = [value(r, count, torch.float32) for r in range(n)]
        total = reduced(dist.ReduceOp.SUM, n, count, torch.float32)

        tensor = cuda.on_device(own[rank])
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait() is True
        expect.equal(cuda.on_host(tensor), total, "all_reduce", count)

        tensor = cuda.on_device(own[rank])
        dist.broadcast(tensor, n - 1)
        expect.equal(cuda.on_host(tensor), own[n - 1], "broadcast", count)

        tensor = cuda.on_device(own[rank])
        dist.reduce(tensor, 0)
        expect.equal(cuda.on_host(tensor), total if rank == 0 else own[rank], "reduce", count)

        whole = cuda.on_device(torch.full((n * count,), -1.0))
        dist.all_gather_into_tensor(whole, cuda.on_device(own[rank]))
        expect.equal(cuda.on_host(whole), torch.cat(own), "all_gather_into_tensor", count)

        parts = [cuda.on_device(torch.full((count,), -1.0)) for _ in range(n)]
        dist.all_gather(parts, cuda.on_device(own[rank]))
        expect.equal(torch.cat([cuda.on_host(part) for part in parts]), torch.cat(own), "gathered")

        part = cuda.on_device(torch.full((count,), -1.0))
        dist.reduce_scatter_tensor(part, cuda.on_device(own[rank].repeat(n)))
        expect.equal(cuda.on_host(part), total, "reduce_scatter_tensor", count)

        dist.all_to_all_single(whole, cuda.on_device(own[rank].repeat(n)))
        expect.equal(cuda.on_host(whole), torch.cat(own), "all_to_all_single", count)

        gathered = [cuda.on_device(torch.empty(count)) for _ in range(n)] if rank == 0 else None
        dist.gather(cuda.on_device(own[rank]), gathered)
        dist.scatter(part, gathered)
        expect.equal(cuda.on_host(part), own[rank], "scatter of what was gathered", count)

        before, after = (rank - 1) % n, (rank + 1) % n
        work = dist.isend(cuda.on_device(own[rank]), after)
        assert dist.recv(part, None if n == 2 else before) == before
        work.wait()
        expect.equal(cuda.on_host(part), own[before], "recv", count)
    dist.barrier()
    expect.check()
    assert cuda.num_recorded_uses() > 0


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_collective(folder, world_size):
    run(every_collective, world_size, folder)


def streams_and_futures(rank, n, folder):
    cuda = load(folder)
    tensor = cuda.on_device(torch.ones(10) * rank)
    cuda.close_gate()
    before = dist.group.WORLD._get_sequence_number_for_group()
    work = dist.all_reduce(tensor, async_op=True)
    # Neither waits for the stream, at whose gate all of this is held up.
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0])
    assert work.wait() is True
    assert future.done()
    assert not work.is_completed()
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 1
    with pytest.raises(dmlcomm.CommTimeoutError):
        work.wait(timedelta(milliseconds=50))
    cuda.open_gate()
    assert cuda.on_host(tensor).tolist() == [sum(range(n))] * 10
    assert doubled.value().data_ptr() == tensor.data_ptr()
    work.wait(timedelta(seconds=30))
    eventually(work.is_completed, "the end of the operation on the device")
    assert work.is_success()
    (result,) = work.result()
    assert result.data_ptr() == tensor.data_ptr()


def test_waiting_blocks_the_stream_and_not_the_thread(folder):
    run(streams_and_futures, 2, folder)


def coalesced(rank, n, folder):
    cuda = load(folder)
    # Together too large to go as one message, for which torch would copy them on the GPU.
    tensors = [cuda.on_device(torch.ones(300_000) * (rank + i)) for i in range(3)]
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    sums = [cuda.on_host(tensor)[0].item() for tensor in tensors]
    assert sums == [sum(range(n)) + n * i for i in range(3)]
    out = cuda.on_device(torch.empty(5))
    operations = [
        dist.P2POp(dist.irecv, out, (rank - 1) % n),
        dist.P2POp(dist.isend, cuda.on_device(torch.ones(5) * rank), (rank + 1) % n),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert cuda.on_host(out).tolist() == [(rank - 1) % n] * 5


def test_coalesced_blocks(folder):
    run(coalesced, 3, folder)


def failing(rank, n, folder):
    cuda = load(folder)
    first = cuda.on_device(torch.ones(1))
    dist.all_reduce(first)
    assert cuda.on_host(first).tolist() == [n]
    if rank == 1:
        dmlcomm.abort(reason="the test wants it")
        return
    tensor = cuda.on_device(torch.ones(100))
    work = dist.all_reduce(tensor, async_op=True)
    with pytest.raises(dmlcomm.AbortedError, match="the test wants it"):
        work.wait(timedelta(seconds=30))
    assert torch.isnan(cuda.on_host(tensor)).all()
    untouched = cuda.on_device(torch.ones(100))
    with pytest.raises(dmlcomm.AbortedError, match="the test wants it"):
        dist.all_reduce(untouched)
    assert cuda.on_host(untouched).tolist() == [1] * 100


def test_a_failure_leaves_nan_and_is_raised_by_later_waits(folder):
    run(failing, 2, folder)


def refused(rank, n, folder):
    cuda = load(folder)
    on_device = cuda.on_device(torch.ones(2))
    with pytest.raises(ValueError, match="expected tensors on one device, got cpu and cuda:0"):
        dist.all_gather([on_device], torch.ones(2))
    with pytest.raises(ValueError, match="expected tensors on one device"):
        dist.all_gather_into_tensor(on_device, torch.ones(2))


def test_tensors_of_several_devices_are_refused(folder):
    run(refused, 1, folder)


def closing(rank, n, folder):
    cuda = load(folder)
    tensor = cuda.on_device(torch.ones(1_000_000) * rank)
    cuda.close_gate()
    dist.all_reduce(tensor)
    cuda.open_gate()
    dist.destroy_process_group()
    assert cuda.on_host(tensor).unique().tolist() == [sum(range(n))]


def test_a_group_that_is_destroyed_lets_its_operations_end(folder):
    run(closing, 2, folder)


def on_hosts(cuda, rank, per_host):
    """Each `per_host` ranks have a host, with a GPU each; a group of dmlcomm's is their NCCL.

    Returns the list to which that is added.
    """
    # The group asks first, and the one inside it for its own all_reduce.
    hosts = iter([f"host {rank // per_host}", f"one of rank {rank}"])

    def describe(device):
        return json.dumps(asdict(hostwise.Gpu(next(hosts), f"{rank}", "2")))

    groups = []

    def make_inside(store, rank, members, name, timeout):
        def connect():
            no_rails = {"rails": [], "grid": [], "host_of_rank": [], "rail_rates_bps": []}
            group = _c10d.create(
                store=store,
                rank=rank,
                size=len(members),
                timeout=timeout,
                name=name,
                global_ranks=list(members),
                is_whole_job=False,
                plan="",
                algorithm="",
                **no_rails,
            )
            groups.append(group)
            return group

        return cuda.without_work(rank, len(members), connect)

    hostwise.describe = describe
    hostwise.make_inside = make_inside
    return groups


def load_with_copies(folder):
    """Also what torch does on the GPU where tensors are copied, or multiplied by a number."""
    cuda = load(folder)
    cuda.before_copy = lambda to, source: None

    def copy(to, source, non_blocking=False):
        cuda.before_copy(to, source)
        cuda.copy(to, source)
        return to

    def multiply(source, factor, out=None):
        out = source if out is None else out
        cuda.copy(out, source, float(factor))
        return out

    def empty(size, dtype=None, **options):
        return cuda.on_device(torch.empty(size, dtype=dtype))

    def empty_strided(size, stride, dtype=None, **options):
        return cuda.on_device(torch.empty_strided(size, stride, dtype=dtype))

    cuda.library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, function in (
        ("empty.memory_format", empty),
        ("empty_strided", empty_strided),
        ("copy_", copy),
        ("mul.out", multiply),
        ("mul_.Tensor", multiply),
    ):
        cuda.library.impl(name, function)
    return cuda


def run_hostwise(function, n, folder, *args, **options):
    environment = {"DMLCOMM_CUDA_NCCL": "auto"}
    return run(function, n, folder, *args, environment=environment, **options)


def sum_of_ones(cuda):
    tensor = cuda.on_device(torch.ones(8))
    dist.all_reduce(tensor)
    return cuda.on_host(tensor).tolist()[0]


def hostwise_sums(rank, n, folder, per_host):
    cuda = load_with_copies(folder)
    groups = on_hosts(cuda, rank, per_host)
    expect = Expectations()
    # Nothing, less than an element for each GPU, multiples and none, more than the ring of slots.
    cases = [(dist.ReduceOp.SUM, torch.float32, count) for count in (0, 1, 2, 6, 8, 1_500_002)]
    cases += [(dist.ReduceOp.SUM, dtype, 1001) for dtype in (torch.bfloat16, torch.int64)]
    cases += [(op, torch.float32, 1001) for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)]
    for op, dtype, count in cases:
        tensor = cuda.on_device(value(rank, count, dtype))
        dist.all_reduce(tensor, op=op)
        expect.equal(cuda.on_host(tensor), reduced(op, n, count, dtype), op, dtype, count)
    for dtype in (torch.float32, torch.float16):
        # The sum is too large for float16.
        tensor = cuda.on_device(torch.full((5,), 20_000.0 + 64 * rank, dtype=dtype))
        work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
        work.wait()
        average = torch.full((5,), 20_000.0 + 32 * (n - 1), dtype=dtype)
        expect.equal(cuda.on_host(tensor), average, "average", dtype)
    work.wait(timedelta(seconds=30))  # for the host, too
    meet("sums")
    (inside,) = groups
    if rank < per_host:
        _c10d.abort(inside, "NCCL is broken")
    # What NCCL does not have.
    for dtype, op in ((torch.int64, dist.ReduceOp.BOR), (torch.bool, dist.ReduceOp.MAX)):
        tensor = cuda.on_device(value(rank, 5, dtype))
        dist.all_reduce(tensor, op=op)
        expect.equal(cuda.on_host(tensor), reduced(op, n, 5, dtype), op, dtype)
    expect.check()
    meet("done without NCCL")
    tensor = cuda.on_device(torch.ones(100))
    error = "NCCL has failed inside the host"
    with pytest.raises(dmlcomm.CommError, match=error):
        dist.all_reduce(tensor, async_op=True).wait(timedelta(seconds=30))
    with pytest.raises(dmlcomm.CommError, match=error):
        dist.all_reduce(tensor)


@pytest.mark.parametrize(("n", "per_host"), [(6, 3), (4, 4)])
def test_gpus_of_a_host_combine_first_and_their_failure_ends_the_group(folder, n, per_host):
    run_hostwise(hostwise_sums, n, folder, per_host)


def hostwise_streams(rank, n, folder):
    cuda = load_with_copies(folder)
    groups = on_hosts(cuda, rank, 2)
    tensors = [cuda.on_device(torch.ones(count) * rank) for count in (10, 601, 400_000)]
    strided = cuda.on_device(torch.arange(6.0).reshape(2, 3) * rank).t()
    dist.all_reduce(tensors[0])
    assert cuda.on_host(tensors[0]).tolist() == [6] * 10
    dmlcomm.set_timeout(timedelta(seconds=40))
    assert "local" in [rail.interface for rail in dmlcomm.rails()]
    before = dist.group.WORLD._get_sequence_number_for_group()
    cuda.close_gate()
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (*tensors, strided)]
    future = works[2].get_future()
    assert [work.wait() for work in works] == [True] * 4
    assert future.done()
    assert not any(work.is_completed() for work in works)
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 4
    with pytest.raises(dmlcomm.CommTimeoutError):
        works[0].wait(timedelta(milliseconds=50))
    cuda.open_gate()
    sums = [cuda.on_host(tensor).unique().tolist() for tensor in tensors]
    assert sums == [[24], [6], [6]]
    assert torch.equal(cuda.on_host(strided.t()), torch.arange(6.0).reshape(2, 3) * 6)
    for work in works:
        work.wait(timedelta(seconds=30))
        assert work.is_completed()
        assert work.is_success()
    assert works[1].result()[0].data_ptr() == tensors[1].data_ptr()
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as together:
        for tensor in tensors:
            dist.all_reduce(tensor)
    together.wait()
    assert cuda.on_host(tensors[2]).unique().tolist() == [24]
    small = [cuda.on_device(torch.ones(count)) for count in (3, 4)]
    dist.all_reduce_coalesced(small)
    assert [cuda.on_host(tensor).tolist() for tensor in small] == [[4] * 3, [4] * 4]
    assert len(groups) == 1
    dist.destroy_process_group()


def test_what_hosts_combine_follows_the_stream(folder):
    run_hostwise(hostwise_streams, 4, folder)


def hostwise_losing(rank, n, folder, per_host):
    cuda = load_with_copies(folder)
    on_hosts(cuda, rank, per_host)
    assert sum_of_ones(cuda) == n
    meet("the first has ended")
    # The device comes to nothing, as if NCCL waited there for the rank that is lost.
    cuda.close_gate()
    work = dist.all_reduce(cuda.on_device(torch.ones(100)), async_op=True)
    meet("called")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dmlcomm.CommError, match="rank 1"):
        work.wait(timedelta(seconds=30))
    cuda.open_gate()
    if hasattr(dist, "shrink_group"):
        groups = on_hosts(cuda, rank, per_host)
        dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        assert sum_of_ones(cuda) == n - 1
        assert len(groups) == per_host // n  # by NCCL where hosts have equally many
    report("went on")


@pytest.mark.parametrize("per_host", [2, 4])
def test_survivors_of_a_lost_rank_go_on_in_a_smaller_group(folder, per_host):
    env = {"DMLCOMM_CUDA_NCCL": "auto"}
    with Ranks(hostwise_losing, 4, (folder, per_host), env=env) as ranks:
        ranks.wait_for("went on", [0, 2, 3])


def hostwise_reconfigured(rank, n, folder, path):
    cuda = load_with_copies(folder)
    store = dist.FileStore(path, n)
    dist.init_process_group(
        "dmlcomm", store=store, rank=rank, world_size=n, enable_reconfigure=True
    )
    store.set(f"handle/{rank}", c10d._get_reconfigure_handle())
    handles = [store.get(f"handle/{each}").decode() for each in range(n)]
    for number, members in enumerate((handles, handles, handles[:2]), 1):
        meet(f"round {number}")  # a rank that reconfigures ends what others have under way
        if rank < len(members):
            groups = on_hosts(cuda, rank, 2)
            c10d._reconfigure(uuid=number, handles=members).wait()
            assert sum_of_ones(cuda) == len(members)
            assert len(groups) == 1
    dist.destroy_process_group()


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="this torch has no reconfigure"
)
def test_ranks_that_are_named_anew_are_on_hosts_anew(folder, tmp_path):
    run_hostwise(hostwise_reconfigured, 4, folder, f"{tmp_path}/store", make_group=False)


def hostwise_late(rank, n, folder):
    cuda = load_with_copies(folder)
    on_hosts(cuda, rank, 2)
    assert sum_of_ones(cuda) == n
    tensor = cuda.on_device(torch.ones(8))
    broken, held, part = dist.new_group(), dist.new_group([0, 1]), dist.new_group([0, 1])
    on_hosts(cuda, rank, 2)
    if rank == 3:
        hostwise.make_inside = None
    who = "unsupported: " if rank == 3 else "rank 3.*"
    error = rf"{who}NCCL cannot be used: .*NoneType"
    with pytest.raises(dmlcomm.CommError, match=error):
        dist.all_reduce(tensor, group=broken)
    meet("all were told")
    on_hosts(cuda, rank, 2)
    if rank < 2:
        dist.all_reduce(tensor, group=held)
    if rank == 0:
        dmlcomm.set_timeout(timedelta(milliseconds=300), group=held)
        cuda.let_parts_go_on(False)
        error = "the all_reduce inside the host: .* within 300 ms"
        with pytest.raises(dmlcomm.CommTimeoutError, match=error):
            dist.all_reduce(tensor, group=held, async_op=True).wait(timedelta(seconds=30))
        cuda.let_parts_go_on(True)
        on_hosts(cuda, rank, 2)
        dmlcomm.set_timeout(timedelta(milliseconds=300), group=part)
        with pytest.raises(dmlcomm.CommTimeoutError, match=r"rank 1 .*GPU for DMLCOMM_CUDA_NCCL"):
            dist.all_reduce(tensor, group=part)
        dmlcomm.set_timeout(timedelta(milliseconds=300))
        work = dist.all_reduce(tensor, async_op=True)
        late = "the reduce-scatter inside the host: .* within 600 ms"
        with pytest.raises(dmlcomm.CommTimeoutError, match=late):
            work.wait(timedelta(seconds=30))
    meet("late")


def test_a_rank_that_does_not_come_is_an_error_and_not_the_end_of_the_process(folder):
    run_hostwise(hostwise_late, 4, folder)


def load_for_hooks(folder):
    """Also what hooks of DDP call of torch's."""
    cuda = load_with_copies(folder)
    zeros = torch.zeros
    torch.zeros = lambda *size, pin_memory=False, **options: zeros(*size, **options)
    torch.cuda.Event = Event
    torch.cuda.current_stream = lambda device: cuda.current_stream()
    return cuda


class Event(torch.Event):
    def __new__(cls, blocking):
        return super().__new__(cls, "cuda")


def wrapped(place):
    """DDP, which itself would launch kernels; only its parameters are on the device."""
    layers = [torch.nn.Linear(1000, 601), torch.nn.Linear(1, 3)]
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
    for parameter in ddp.parameters():
        parameter.data = place(parameter.data)
    return ddp


def buckets_of(ddp, rank, step, place):
    """Two of DDP's, with gradients that all hooks round."""
    parameters, buckets = list(ddp.parameters()), []
    for index in range(2):
        own = parameters[2 * index : 2 * index + 2]
        generator = torch.Generator().manual_seed(100 * step + 10 * index + rank)
        gradients = torch.randn(sum(each.numel() for each in own), generator=generator)
        buckets.append(Bucket(index, place(gradients), own))
    return buckets


class Bucket:
    """What a hook may ask of DDP's."""

    def __init__(self, index, gradients, parameters):
        self.index = lambda: index
        self.buffer = lambda: gradients
        self.parameters = lambda: parameters


def behind_a_gate(cuda, function):
    """What it returns, called with a current stream that comes to nothing behind."""
    on_stream = torch.futures.Future(devices=["cuda:0"])
    on_stream.set_result(None)
    returned = []

    def call(_):
        cuda.close_gate()
        returned.append(function())

    on_stream.then(call).wait()
    return returned.pop()


def averaged(cuda, hook, state, buckets, has_to_wait):
    """As DDP sees it: with the stream that waits for the hook's futures."""
    futures = behind_a_gate(cuda, lambda: [hook(state, bucket) for bucket in buckets])
    assert [future.done() for future in futures] == [not has_to_wait] * len(futures)
    if has_to_wait:  # the host for copies from the GPU, and then the stream for copies to it
        cuda.before_copy = lambda to, source: cuda.close_gate()
        cuda.open_gate()
    for future in futures:
        future.wait()
    cuda.before_copy = lambda to, source: None
    seen = [cuda.on_device(torch.zeros(bucket.buffer().numel())) for bucket in buckets]
    for to, bucket in zip(seen, buckets, strict=True):
        to.copy_(bucket.buffer())
    eventually(cuda.is_held_up, "the stream waits for the averages")
    cuda.open_gate()
    return [cuda.on_host(tensor) for tensor in seen]


def hooks(rank, n, folder):
    cuda = load_for_hooks(folder)
    expect = Expectations()
    on_host, on_device = wrapped(torch.clone), wrapped(cuda.on_device)
    quantized = QuantizeState(on_host), QuantizeState(on_device)
    cases = {
        bf16_hook: (None, None),
        comm_hook: (HookState(on_host), HookState(on_device)),
        quantize_hook: quantized,
    }
    for hook, (host_state, state) in cases.items():
        for step in range(2):
            expected = buckets_of(on_host, rank, step, torch.clone)
            for future in [hook(host_state, bucket) for bucket in expected]:
                future.wait()
            buckets = buckets_of(on_device, rank, step, cuda.on_device)
            found = averaged(cuda, hook, state, buckets, hook is quantize_hook)
            for tensor, bucket in zip(found, expected, strict=True):
                expect.equal(tensor, bucket.buffer(), hook, step, bucket.index())
    errors = [state.state_dict() for state in quantized]
    for name, error in errors[0].items():
        expect.equal(errors[1][name], error, "error feedback", name)
        assert error.any()
    expect.check()
    bucket = buckets_of(on_device, rank, 0, cuda.on_device)[0]
    with pytest.raises(TypeError, match=r"ps_hook: expected .* the CPU, got cuda:0 in bucket 0"):
        ps_hook(PsHookState(None), bucket)
    meet("averages")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for hook, (_, state) in cases.items():
        with pytest.raises(dmlcomm.PeerLostError, match="rank 1"):
            while True:
                hook(state, bucket).wait()
                cuda.on_host(bucket.buffer())
    return True


def test_hooks_of_ddp_average_and_the_stream_waits_for_them(folder):
    env = {"DMLCOMM_CUDA_CHUNK_BYTES": str(CHUNK_BYTES)}
    with Ranks(hooks, 2, (folder,), env=env, deadline_s=120) as ranks:
        assert ranks.collect(only=[0]) == [True]


def two_backends(rank, n, folder):
    cuda = load(folder)
    file = dist.FileStore(os.environ["TEST_STORE"], n)
    for backend in ("cpu:gloo,cuda:dmlcomm", "cpu:dmlcomm,cuda:dmlcomm"):
        dist.init_process_group(
            backend, store=dist.PrefixStore(backend, file), rank=rank, world_size=n
        )
        tensor = cuda.on_device(torch.ones(3))
        dist.all_reduce(tensor)
        assert cuda.on_host(tensor).tolist() == [n] * 3
        own = torch.ones(3)
        dist.all_reduce(own)
        assert own.tolist() == [n] * 3
        assert "local" in [rail.interface for rail in dmlcomm.rails()]
        dist.destroy_process_group()


def test_dmlcomm_for_cuda_tensors_beside_a_backend_for_others(folder, tmp_path):
    environment = {"TEST_STORE": str(tmp_path / "store")}
    run_ranks(two_backends, 2, folder, env=environment, make_group=False)


def test_nothing_is_linked_to_cuda():
    from dmlcomm import _c10d, _core

    for module in (_c10d, _core):
        listing = subprocess.run(
            ["readelf", "-d", module.__file__], capture_output=True, text=True, check=True
        ).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
        assert "libc.so.6" in needed
        assert not [name for name in needed if re.search("cuda|nv|cu(blas|dnn|rand)", name)]


def test_a_job_without_cuda_tensors_loads_no_driver():
    script = (
        "import re, torch, torch.distributed as dist\n"
        "def libraries():\n"
        "    maps = open('/proc/self/maps').read()\n"
        "    return set(re.findall('/[^ ]*(?:cuda|nccl)[^ /]*[.]so[^ ]*', maps))\n"
        "of_torch = libraries()\n"
        "import dmlcomm\n"
        "dist.init_process_group('dmlcomm', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "assert libraries() == of_torch, libraries() - of_torch\n"
        "dist.destroy_process_group()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
