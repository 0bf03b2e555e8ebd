"""Random operations with random tickets, which each rank draws for itself; all results compared.

    PYTHONPATH=tests python -m soak.tickets --ranks 4 --transport tcp --operations 20000
    PYTHONPATH=tests python -m soak.tickets --lab flat:4,1 --operations 20000

Collectives, messages, and pushes and pulls of two parameter servers, which the first and the last
rank run. No order that tickets make may hang, or change a result. Only between hosts, as in a lab,
do urgent operations have connections of their own.
"""

import argparse
import contextlib
import inspect
import random
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

import dmlcomm
from dmlcomm.lab import Lab
from dmlcomm.ps import Client, Server, ServerOptions
from dmlcomm.topology import graph
from helpers import run_ranks
from helpers.lab_scripts import run_script


class Operations:
    """The same operations on all ranks, each rank with tickets of its own; checks every result."""

    MAX_PENDING = 90
    KINDS = (
        *("all_reduce", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("broadcast", "send", "share"),
        *("push", "pull", "push_pull"),
    )
    SIZES = (1, 7, 1000, 20_000, 20_000, 300_000)  # of int64

    def __init__(self, rank: int, num_ranks: int, seed: int, client: Client) -> None:
        self._rank = rank
        self._n = num_ranks
        self._common = random.Random(seed)
        self._own = random.Random(1000 * seed + rank)
        self._pending: list[tuple[Callable[[], object], Callable[[], bool]]] = []
        self._shared = torch.zeros(num_ranks, 1000, dtype=torch.int64)
        self._last = self._shared
        self._client = client
        self._sums = {size: self._value(0, 0, size) for size in self.SIZES}
        self._num_pushes = dict.fromkeys(self.SIZES, 0)
        for size, weights in self._sums.items():
            for model, apply in (("sums", "clock"), ("counts", "push")):
                options = {"rule": "add", "reduce": "sum", "apply": apply}
                client.init(f"{model} {size}", weights.clone(), **options)

    def run(self, count: int, first_ticket: int = 0) -> None:
        for number in range(count):
            size = self._common.choice(self.SIZES)
            start = getattr(self, "_" + self._common.choice(self.KINDS))
            ticket = 128
            if number >= first_ticket:
                ticket = self._own.choice([0, 5, 128, self._own.randrange(256)])
            with dmlcomm.ticket(ticket):
                start(number, size)
            # Ranks wait for different operations, in another order than that of the calls.
            while len(self._pending) > self._own.randrange(self.MAX_PENDING):
                self._finish(self._own.randrange(len(self._pending)))
        while self._pending:
            self._finish(len(self._pending) - 1)
        assert torch.equal(self._shared, self._last)
        self._client.barrier()
        for size, count in self._num_pushes.items():
            weights = self._client.pull(f"counts {size}", staleness=None)
            assert torch.equal(weights, torch.full_like(weights, count))

    def _finish(self, index: int) -> None:
        wait, is_right = self._pending.pop(index)
        wait()
        assert is_right()

    def _expect(
        self, wait: Callable[[], object], got: torch.Tensor, expected: torch.Tensor
    ) -> None:
        self._pending.append((wait, lambda: torch.equal(got, expected)))

    def _value(self, rank: int, number: int, size: int) -> torch.Tensor:
        return torch.full((size,), 1000 * number + rank, dtype=torch.int64)

    def _all_reduce(self, number: int, size: int) -> None:
        tensor = self._value(self._rank, number, size)
        expected = sum(self._value(rank, number, size) for rank in range(self._n))
        self._expect(dist.all_reduce(tensor, async_op=True).wait, tensor, expected)

    def _all_gather(self, number: int, size: int) -> None:
        got = torch.empty(self._n, size, dtype=torch.int64)
        own = self._value(self._rank, number, size)
        expected = torch.stack([self._value(rank, number, size) for rank in range(self._n)])
        work = dist.all_gather(list(got), own, async_op=True)
        self._expect(work.wait, got, expected)

    def _reduce_scatter(self, number: int, size: int) -> None:
        got = torch.empty(size // self._n + 1, dtype=torch.int64)
        own = self._value(self._rank, number, self._n * got.numel())
        expected = sum(self._value(rank, number, got.numel()) for rank in range(self._n))
        work = dist.reduce_scatter_tensor(got, own, async_op=True)
        self._expect(work.wait, got, expected)

    def _all_to_all(self, number: int, size: int) -> None:
        part = size // self._n + 1
        own = self._value(self._rank, number, self._n * part)
        got = torch.empty_like(own)
        expected = torch.cat([self._value(rank, number, part) for rank in range(self._n)])
        work = dist.all_to_all_single(got, own, async_op=True)
        self._expect(work.wait, got, expected)

    def _broadcast(self, number: int, size: int) -> None:
        root = self._common.randrange(self._n)
        tensor = self._value(self._rank, number, size)
        work = dist.broadcast(tensor, root, async_op=True)
        self._expect(work.wait, tensor, self._value(root, number, size))

    def _share(self, number: int, size: int) -> None:
        """All of these write to one tensor, so they run in the order of their calls."""
        own = self._value(self._rank, number, self._shared.shape[1])
        self._last = torch.stack([torch.full_like(own, 1000 * number + r) for r in range(self._n)])
        work = dist.all_gather_into_tensor(self._shared, own, async_op=True)
        self._expect(work.wait, own, own)

    def _send(self, number: int, size: int) -> None:
        """All messages of a pair have one tag: they meet their receives in the order of calls."""
        source = self._common.randrange(self._n)
        destination = (source + self._common.randrange(1, self._n)) % self._n
        expected = self._value(source, number, size)
        if self._rank == source:
            work = dist.isend(expected, destination)
            self._expect(work.wait, expected, expected.clone())
        elif self._rank == destination:
            got = torch.empty_like(expected)
            self._expect(dist.irecv(got, source).wait, got, expected)

    def _push(self, number: int, size: int) -> None:
        """Each push is an update at once; element i counts those of rank i mod n."""
        self._num_pushes[size] += 1
        ones = torch.zeros(size, dtype=torch.int64)
        ones[self._rank :: self._n] = 1
        future = self._client.push_async(f"counts {size}", ones)
        self._expect(future.result, ones, ones.clone())

    def _pull(self, number: int, size: int) -> None:
        """Has the pushes of this rank that were called before; later ones may be in it, too."""
        got = torch.empty(size, dtype=torch.int64)
        future = self._client.pull_async(f"counts {size}", None, out=got)
        own = got[self._rank :: self._n]
        least = self._num_pushes[size]

        def is_right() -> bool:
            return bool(torch.all((own >= least) & (own <= self._num_pushes[size])))

        self._pending.append((future.result, is_right))

    def _push_pull(self, number: int, size: int) -> None:
        """Ends a clock, of which all ranks get the same weights."""
        own = self._value(self._rank, number, size)
        self._sums[size] = sum(
            (self._value(r, number, size) for r in range(self._n)), self._sums[size]
        )
        got = torch.empty_like(own)
        future = self._client.push_pull_async(f"sums {size}", own, out=got)
        self._expect(future.result, got, self._sums[size])


@contextlib.contextmanager
def servers_client(rank: int, num_ranks: int, host: str) -> Iterator[Client]:
    """This rank's client of two servers, which the first and the last rank run on their hosts."""
    store = dist.distributed_c10d._get_default_store()
    with contextlib.ExitStack() as stack:
        for index, place in enumerate((0, num_ranks - 1)):
            if rank == place:
                numbers = {"index": index, "num_servers": 2, "workers": num_ranks}
                server = Server(ServerOptions(f"{host}:0", insecure=True, **numbers))
                store.set(f"server {index}", stack.enter_context(server).address)
        addresses = [store.get(f"server {index}").decode() for index in range(2)]
        with Client(addresses, worker=rank, timeout_s=50) as client:
            yield client
        dist.barrier()  # none needs the servers any more


def _run(rank: int, n: int, count: int, seed: int) -> None:
    with servers_client(rank, n, "127.0.0.1") as client:
        Operations(rank, n, seed, client).run(count)


def run_random_tickets(
    num_ranks: int, transport: str, count: int, seed: int, deadline_s: float
) -> None:
    """Carries out `count` operations on `num_ranks` ranks. Raises what a rank raises."""
    env = {"DMLCOMM_TRANSPORT": transport}
    run_ranks(_run, num_ranks, count, seed, env=env, deadline_s=deadline_s)


def run_random_tickets_in_lab(
    spec: str, count: int, seed: int, deadline_s: float, first_ticket: str = "0"
) -> None:
    """The same with a rank on each host of a lab.

    Args:
        spec: topology of the lab.
        first_ticket: of which operation on a rank gives tickets; may name its `rank`.
    """
    script = f"""
import contextlib, psutil, random
from collections.abc import Callable, Iterator
from dmlcomm.ps import Client, Server, ServerOptions
{inspect.getsource(Operations)}
{inspect.getsource(servers_client)}
host = psutil.net_if_addrs()["mgmt0"][0].address
with servers_client(rank, size, host) as client:
    Operations(rank, size, {seed}, client).run({count}, {first_ticket})
assert dmlcomm.rails()[0].bytes_sent > 0
say("fine")
end()
"""
    with Lab(spec) as lab:
        found = run_script(lab, script, deadline_s=deadline_s)
        num_hosts = len(graph.hosts(lab.graph()))
    assert found.stdout.count("fine") == num_hosts, found.stdout + found.stderr


def main() -> None:
    parser = argparse.ArgumentParser("soak.tickets", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="on this host")
    parser.add_argument("--transport", choices=["auto", "tcp"], default="auto", help="of these")
    parser.add_argument("--lab", metavar="TOPOLOGY", help="a rank on each host of a lab, instead")
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadline-s", type=float, default=280)
    options = parser.parse_args()
    begun = time.monotonic()
    work = (options.operations, options.seed, options.deadline_s)
    if options.lab:
        place = f"a rank on each host of {options.lab}"
        run_random_tickets_in_lab(options.lab, *work)
    else:
        place = f"{options.ranks} ranks, {options.transport}"
        run_random_tickets(options.ranks, options.transport, *work)
    print(
        f"{options.operations} operations, {place}, seed {options.seed}: all results right, "
        f"{time.monotonic() - begun:.1f} s"
    )


if __name__ == "__main__":
    main()
