"""Calls with CUDA tensors where no GPU is: the driver and torch's streams are a stand-in's."""

import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dmlcomm
from helpers import Expectations, eventually, run_ranks
from helpers.values import reduced, value

NAME = "fake_cuda"
SOURCE = Path(__file__).parent / "helpers" / f"{NAME}.cc"
CHUNK_BYTES = 1 << 18
# Less than a part, and more than the ring holds.
COUNTS = [0, 5, 600_001]


pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="CUDA's driver is there, which the stand-in takes the place of",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the module lies that stands in for CUDA."""
    from torch.utils import cpp_extension

    path = str(tmp_path_factory.mktemp(NAME))
    flags = {"extra_cflags": ["-O0", "-std=c++20"], "extra_ldflags": ["-Wl,-soname,libcuda.so.1"]}
    cpp_extension.load(NAME, [str(SOURCE)], build_directory=path, is_python_module=False, **flags)
    return path


def load(folder):
    sys.path.insert(0, folder)
    import fake_cuda

    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # torch.distributed asks
    return fake_cuda


def run(function, n, folder, **options):
    environment = {"DMLCOMM_CUDA_CHUNK_BYTES": str(CHUNK_BYTES)}
    return run_ranks(function, n, folder, env=environment, **options)


def every_collective(rank, n, folder):
    cuda = load(folder)
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


def two_backends(rank, n, folder):
    cuda = load(folder)
    dist.init_process_group(
        "cpu:gloo,cuda:dmlcomm",
        store=dist.FileStore(os.environ["TEST_STORE"], n),
        rank=rank,
        world_size=n,
    )
    tensor = cuda.on_device(torch.ones(3))
    dist.all_reduce(tensor)
    assert cuda.on_host(tensor).tolist() == [n] * 3
    assert "local" in [rail.interface for rail in dmlcomm.rails()]
    dist.destroy_process_group()


def test_dmlcomm_for_cuda_tensors_alone(folder, tmp_path):
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
        "import torch, torch.distributed as dist, dmlcomm\n"
        "dist.init_process_group('dmlcomm', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "assert 'libcuda.so' not in open('/proc/self/maps').read()\n"
        "dist.destroy_process_group()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
