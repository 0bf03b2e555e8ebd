"""One rank of `switch`: rank 0 takes what the others, the workers, send, layer by layer.

switch_rank.py RUNS BARRIER      a JSON list of `Run`; a file of `benchmarks.barrier`

The program that starts the ranks meets them at the barrier before and after each run. Rank 0 prints
a line of JSON for each.
"""

import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

import dmlcomm
from benchmarks.barrier import open_barrier
from benchmarks.lab_worker import end
from benchmarks.prio.wire import Wire
from dmlcomm.prio.ticket import DEFAULT_TICKET

TIMEOUT = timedelta(minutes=2)
LOOK_S = 0.0005
BIN_S = 0.01  # of the record of the wire


@dataclass(frozen=True)
class Run:
    """Every worker sends all layers once, the last layer first, as back-propagation ends.

    Attributes:
        name: of the contestant.
        layers: bytes of each.
        gap_s: from one layer to the next.
        has_tickets: whether a layer's operation has its number as ticket.
        own_groups: whether each layer has a process group, and so a connection, of its own.
    """

    name: str
    layers: tuple[int, ...]
    gap_s: float
    has_tickets: bool
    own_groups: bool

    def offset_s(self, layer: int) -> float:
        """When workers have a layer, from the beginning."""
        return (len(self.layers) - 1 - layer) * self.gap_s


def main() -> None:
    runs = [Run(**entry) for entry in json.loads(sys.argv[1])]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    groups = [dist.new_group(backend="dmlcomm", timeout=TIMEOUT) for _ in runs[0].layers]
    for group in groups:
        dist.barrier(group)  # connections are made
    barrier = open_barrier(sys.argv[2], dist.get_rank())
    for run in runs:
        used = groups if run.own_groups else groups[:1] * len(groups)
        role = _Server(run, used) if dist.get_rank() == 0 else _Worker(run, used)
        barrier.wait()
        role.run()
        barrier.leave()
        role.report()
    dist.barrier()
    end()


def _content(worker: int, layer: int, num_bytes: int) -> torch.Tensor:
    return torch.full((num_bytes,), 16 * worker + layer + 1, dtype=torch.uint8)


class _Worker:
    def __init__(self, run: Run, groups: list[dist.ProcessGroup]) -> None:
        self._run = run
        self._groups = groups
        rank = dist.get_rank()
        self._tensors = [_content(rank, layer, size) for layer, size in enumerate(run.layers)]

    def run(self) -> None:
        pending = []
        begin = time.monotonic()
        for layer in reversed(range(len(self._tensors))):
            time.sleep(max(0.0, begin + self._run.offset_s(layer) - time.monotonic()))
            with dmlcomm.ticket(layer if self._run.has_tickets else DEFAULT_TICKET):
                pending.append(dist.isend(self._tensors[layer], 0, self._groups[layer], tag=layer))
        for work in pending:
            work.wait()

    def report(self) -> None:
        pass


class _Server:
    def __init__(self, run: Run, groups: list[dist.ProcessGroup]) -> None:
        self._run = run
        self._workers = range(1, dist.get_world_size())
        self._tensors = {}
        self._pending = {}
        self._begin_s = 0.0  # on the clock of the wire
        for worker in self._workers:
            for layer, size in enumerate(run.layers):
                tensor = torch.zeros(size, dtype=torch.uint8)
                self._tensors[worker, layer] = tensor
                self._pending[worker, layer] = dist.irecv(tensor, worker, groups[layer], tag=layer)
        self._seconds = {}
        self._wire = Wire(is_outgoing=False)

    def run(self) -> None:
        begin = time.monotonic()
        self._begin_s = time.time()
        self._wire.begin()
        while self._pending:
            for key, work in list(self._pending.items()):
                if work.is_completed():
                    since_begin = time.monotonic() - begin
                    self._seconds[key] = since_begin - self._run.offset_s(key[1])
                    self._pending.pop(key).wait()
            time.sleep(LOOK_S)
        self._wire.end()

    def report(self) -> None:
        wrong = sum(
            int((tensor != _content(*key, tensor.numel())).sum())
            for key, tensor in self._tensors.items()
        )
        layers = range(len(self._run.layers))
        delays = [[self._seconds[worker, layer] for layer in layers] for worker in self._workers]
        line = {"name": self._run.name, "delays_s": delays, "wrong": wrong}
        print(json.dumps(line | {"wire": self._bins()}), flush=True)

    def _bins(self) -> list[dict[str, int]]:
        """Who was on the wire when: bytes by worker, layer (null: no mark) and bin of BIN_S."""
        sums: dict[tuple, int] = {}
        for packet in self._wire.packets:
            if packet.host > 0:
                number = int((packet.at_s - self._begin_s) / BIN_S)
                key = packet.host, packet.layer, number
                sums[key] = sums.get(key, 0) + packet.num_bytes
        names = ("worker", "layer", "bin", "bytes")
        return [dict(zip(names, (*key, sums[key]), strict=True)) for key in sorted(sums, key=str)]


if __name__ == "__main__":
    main()
