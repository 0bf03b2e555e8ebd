"""The demo's LeNet-5 on handwritten digits learns with servers, however far workers are apart."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from dmlcomm.ps import DistributedOptimizer
from examples.lenet import Digits, LeNet5, load_digits
from helpers.parameter_servers import run_workers, servers

pytest.importorskip("sklearn", reason="the demo's data comes with scikit-learn")

# One training is compared with the others: they are for one process, where pytest has several.
pytestmark = pytest.mark.xdist_group("training")

SEED = 7
WORKERS = 2
BATCH = 16  # of a worker
STEPS = 120
LEARNING_RATE = 5e-4

# Of one training, which takes some ten seconds of CPU: it has to end also on a busy machine.
TRAINING_DEADLINE_S = 240.0

# Ten digits: who guesses gets a tenth of them.
REQUIRED_ACCURACY = 0.93

# 11 of 360 images: what gradients of older weights may cost in so few steps.
MARGIN = 0.03


class Lead:
    """Keeps worker 0 so many clocks ahead of worker 1: always one of the two may make a step.

    So the weights have the same bits in every run, and those that worker 0 gets are always older.
    """

    def __init__(self, clocks: int) -> None:
        self._clocks = clocks
        self._changed = threading.Condition()
        self._done = [0] * WORKERS

    def wait_for_turn(self, worker: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._turn() == worker, TRAINING_DEADLINE_S)

    def end_turn(self, worker: int) -> None:
        with self._changed:
            self._done[worker] += 1
            self._changed.notify_all()

    def _turn(self) -> int:
        ahead, behind = self._done
        return 0 if ahead < min(behind + self._clocks, STEPS) else 1


class InStep:
    """Workers make their steps at the same time: pulls of staleness 0 wait for the other one."""

    def wait_for_turn(self, worker: int) -> None:
        """At once."""

    def end_turn(self, worker: int) -> None:
        """Nobody waits for it."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread_per_worker() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits(_one_thread_per_worker) -> tuple[Digits, Digits]:
    return load_digits(SEED)


def lenet() -> LeNet5:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return LeNet5()


def batches(train_set: Digits, worker: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A worker's part of every batch, without end; the same shuffle on all workers."""
    shuffle = torch.Generator().manual_seed(SEED)
    size = WORKERS * BATCH
    while True:
        order = torch.randperm(len(train_set), generator=shuffle)
        for batch in order[: len(order) // size * size].split(size):
            yield train_set[batch[worker::WORKERS]]


@torch.no_grad()
def accuracy(net: LeNet5, test_set: Digits) -> float:
    return (net(test_set.images).argmax(1) == test_set.labels).float().mean().item()


def training(train_set: Digits, staleness: int | None, turns: Lead | InStep):
    """What a worker does. It returns a net with the weights that have all workers' gradients."""
    nets = [lenet() for _ in range(WORKERS)]

    def train(client) -> LeNet5:
        worker, net = client.worker, nets[client.worker]
        optimizer = DistributedOptimizer(
            net.parameters(), client, rule="adam", staleness=staleness, lr=LEARNING_RATE
        )
        # To zero, so that the last steps settle.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
        for _, (images, labels) in zip(range(STEPS), batches(train_set, worker), strict=False):
            turns.wait_for_turn(worker)
            optimizer.zero_grad()
            functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            schedule.step()
            turns.end_turn(worker)
        client.pull("model", out=list(net.parameters()))
        return net

    return train


def trained_accuracy(
    digits: tuple[Digits, Digits], staleness: int | None, turns: Lead | InStep
) -> float:
    train_set, test_set = digits
    with servers(2, workers=WORKERS) as addresses:
        train = training(train_set, staleness, turns)
        nets = run_workers(train, WORKERS, addresses, deadline_s=TRAINING_DEADLINE_S)
    weights = zip(*(net.parameters() for net in nets), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)
    return accuracy(nets[0], test_set)


@pytest.fixture(scope="module")
def synchronous(digits) -> float:
    return trained_accuracy(digits, 0, InStep())


def test_synchronous_training_reaches_the_accuracy(synchronous, digits):
    assert accuracy(lenet(), digits[1]) < 0.3  # before
    assert synchronous >= REQUIRED_ACCURACY


@pytest.mark.parametrize(("staleness", "lead"), [(3, 3), (None, 6)])
def test_training_with_older_weights_reaches_the_same_accuracy(
    synchronous, digits, staleness, lead
):
    found = trained_accuracy(digits, staleness, Lead(lead))
    assert found >= REQUIRED_ACCURACY
    assert found >= synchronous - MARGIN
