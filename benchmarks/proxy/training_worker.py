"""Workers of one host, as threads, that train the demo's LeNet-5 with `DistributedOptimizer`.

--count is the number of steps. Each worker prints a line per step, and at the end its figures:
accuracy and loss on the test set, seconds of a median step, and of the longest one.
"""

import argparse
import itertools
import os
import statistics
import sys
import threading
import time

import torch
from torch.nn import functional

from dmlcomm.ps import Client, DistributedOptimizer
from examples.lenet import LeNet5, load_digits

SEED = 7
BATCH = 16  # of a worker
LEARNING_RATE = 5e-4
TIMEOUT_S = 60.0
# Before steps are timed.
WARM_UP = 5


def main() -> None:
    options = _parse()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    nets = [LeNet5() for _ in range(options.workers)]
    failed = threading.Event()
    threads = [
        threading.Thread(target=_run, args=(options, worker, nets[worker], failed))
        for worker in options.numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failed.is_set() else 0)


def _run(options: argparse.Namespace, worker: int, net: LeNet5, failed: threading.Event) -> None:
    try:
        with Client(
            options.servers, worker=worker, proxy=options.proxy, timeout_s=TIMEOUT_S
        ) as client:
            _train(client, options, net)
    except BaseException as error:
        failed.set()
        _say(f"error worker {worker}: {error!r}")
        raise


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
        _say(f"clock {client.worker} {step + 1} {int(client.by_proxy)}")
    client.pull("model", out=list(net.parameters()))
    steps = [after - before for before, after in itertools.pairwise(ends[WARM_UP:])]
    with torch.no_grad():
        logits = net(test_set.images)
    accuracy = (logits.argmax(1) == test_set.labels).float().mean().item()
    loss = functional.cross_entropy(logits, test_set.labels).item()
    figures = (accuracy, loss, statistics.median(steps), max(steps))
    _say(f"result {client.worker} {' '.join(map(str, figures))}")


def _say(line: str) -> None:
    """In one piece, as several threads do."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--proxy", required=True)
    parser.add_argument("--numbers", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
