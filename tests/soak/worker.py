"""A worker of parameter servers that counts its own pushes in the weights.

Element i belongs to worker i mod W, which adds 1 to all of its elements with each push: they tell
how often it has pushed. So a push that is lost or applied twice is seen by the next pull, whoever
else comes and goes.

One that takes the place of another goes on with its elements. What that one pushed last may become
part of them a little later, up to ``most`` in all. What anybody has seen stays, whichever server
dies.

It reports its clock, and how often it has pushed; "start" with the least and the greatest of its
elements when it begins; "dip" if an element is less than it should be; "fewer" with another worker
and by how much its elements are less than before; "lost" when servers have given it up.
``("hold",)`` stops it until the next command, when it has reported "held" with its clock: nobody
goes far without it. ``("last", clock)`` ends it at this clock, with "final" and the sum of all
weights.
"""

import random
from typing import Any

import numpy as np

from dmlcomm import errors
from dmlcomm.ps import Client
from soak.faults import Failure
from soak.link import Link
from soak.members import HANG_S, Usage

MODEL = "w"
MOST_PUSHES = 3  # in one clock


def main(
    link: Link,
    *,
    worker: int,
    workers: int,
    servers: str,
    count: int,
    seed: str,
    most: int,
    **options: Any,
) -> None:
    try:
        with Client(servers, worker=worker, timeout_s=10 * HANG_S, **options) as client:
            _work(link, client, workers, count, most, random.Random(seed))
    except (errors.PsServerLostError, errors.PsRefusedError) as error:
        link.report("lost", str(error))


def _work(
    link: Link,
    client: Client,
    workers: int,
    count: int,
    most: int,
    rng: random.Random,
) -> None:
    first = np.zeros(count * workers, np.int64)  # until init() writes the present values there
    weights = client.init(MODEL, first, rule="add", reduce="sum")
    own = slice(client.worker, None, workers)
    link.report("start", (int(weights[own].min()), int(weights[own].max())))
    ones = np.zeros_like(weights)
    ones[own] = 1
    census = Census(weights[own], most)
    others_before = _without(weights, own)
    last = None
    while last is None or client.clock_of(MODEL) < last:
        pushes = rng.randint(0, MOST_PUSHES)
        if pushes == 1 and rng.random() < 0.5:
            weights = client.push_pull(MODEL, ones)
        else:
            for _ in range(pushes):
                client.push(MODEL, ones)
            client.clock()
            weights = client.pull(MODEL)
        census.compare(link, pushes, weights[own])
        others = _without(weights, own)
        for other, by in _fewer(others_before - others, workers):
            link.report("fewer", (other, by))
        others_before = others
        link.report("progress", (client.clock_of(MODEL), census.bounds(weights[own])))
        if last is None and link.has_command():
            last = _last_clock(link, client)
    link.report("final", (int(weights.sum()), Usage.own()))


def _last_clock(link: Link, client: Client) -> int:
    name, *values = link.next_command()
    if name == "hold":
        link.report("held", client.clock_of(MODEL))
        _, *values = link.next_command()
    return int(values[0])


def _fewer(less: np.ndarray, workers: int) -> list[tuple[int, int]]:
    """The workers whose elements are less than before, and by how much."""
    most = [(worker, int(less[worker::workers].max())) for worker in range(workers)]
    return [(worker, by) for worker, by in most if by > 0]


def _without(weights: np.ndarray, own: slice) -> np.ndarray:
    others = weights.copy()
    others[own] = 0
    return others


class Census:
    """How often this worker has pushed, by its elements."""

    def __init__(self, begin: np.ndarray, most: int) -> None:
        self._expected = begin.copy()
        self._sure = begin.copy()  # what it has seen last
        self._late = np.maximum(most - begin, 0)  # what may come of the life before

    def bounds(self, elements: np.ndarray) -> tuple[int, int]:
        """How many pushes at least, and at most, will be there after this worker's death."""
        return int(elements.min()), int((self._expected + self._late).max())

    def compare(self, link: Link, pushes: int, elements: np.ndarray) -> None:
        """After so many more pushes."""
        self._expected += pushes
        self._sure += pushes
        if np.any(elements > self._expected + self._late):
            first = np.argmax(elements > self._expected + self._late)
            link.wrong(
                Failure.DOUBLED_UPDATE,
                f"own element {first} is {elements[first]}, expected {self._expected[first]} and "
                f"at most {self._late[first]} that are late: a push was applied twice",
            )
        if np.any(elements < self._sure):
            first = np.argmax(elements < self._sure)
            text = (
                f"own element {first} is {elements[first]}, expected {self._sure[first]} at least"
            )
            link.report("dip", f"{text}: a push was lost")
        self._sure = elements.copy()
        self._expected = np.minimum(self._expected, elements)
