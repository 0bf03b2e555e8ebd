"""Workers of one host, as threads, that train the demo's LeNet-5 with `DistributedOptimizer`.

--count is the number of steps. Each worker prints a line per step, and at the end its figures:
accuracy and loss on the test set, a checksum of all weights, seconds of a median step, and of the
longest one.
"""

import argparse
import itertools
import statistics
import time
import zlib

import torch
from torch.nn import functional

from benchmarks.proxy import workers
from dmlcomm.ps import Client, DistributedOptimizer
from examples.lenet import LeNet5, load_digits

SEED = 7
BATCH = 16  # of a worker
LEARNING_RATE = 5e-4
# Before steps are timed.
WARM_UP = 5


def main() -> None:
    options = workers.parse()
    torch.set_num_threads(1)
    nets = [_new_net() for _ in range(options.workers)]

    def train(worker: int) -> None:
        where = {"proxy": options.proxy, "timeout_s": workers.TIMEOUT_S}
        with Client(options.servers, worker=worker, **where) as client:
            _train(client, options, nets[worker])

    workers.run(options, train)


def _new_net() -> LeNet5:
    """The same weights everywhere: those of the worker that comes first are taken."""
    torch.manual_seed(SEED)
    return LeNet5()


def _train(client: Client, options: argparse.Namespace, net: LeNet5) -> None:
    train_set, test_set = load_digits(SEED)
    optimizer = DistributedOptimizer(net.parameters(), client, rule="adam", lr=LEARNING_RATE)
    # To zero, so that the last steps settle.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / options.count)
    shuffle = torch.Generator().manual_seed(SEED)  # the same on all workers
    ends = []
    for step in range(options.count):
        batch = torch.randperm(len(train_set), generator=shuffle)[: options.workers * BATCH]
        images, labels = train_set[batch[client.worker :: options.workers]]
        optimizer.zero_grad()
        functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        schedule.step()
        ends.append(time.monotonic())
        way = f"{int(client.by_proxy)} {client.way_since}"
        workers.say(f"clock {client.worker} {step + 1} {way}")
    client.pull("model", out=list(net.parameters()))
    steps = [after - before for before, after in itertools.pairwise(ends[WARM_UP:])]
    with torch.no_grad():
        logits = net(test_set.images)
    accuracy = (logits.argmax(1) == test_set.labels).float().mean().item()
    loss = functional.cross_entropy(logits, test_set.labels).item()
    figures = (accuracy, loss, _checksum(net), statistics.median(steps), max(steps))
    workers.say(f"result {client.worker} {' '.join(map(str, figures))}")


def _checksum(net: LeNet5) -> int:
    checksum = 0
    for parameter in net.parameters():
        checksum = zlib.crc32(parameter.detach().numpy().tobytes(), checksum)
    return checksum


if __name__ == "__main__":
    main()
