"""Workers of one host, as threads, that train without an end and compare every sum.

Each prints a line per clock: its number, the clock, whether it goes by a proxy, and since when. A
line that comes by stdin, "last CLOCK", ends it there. Weights are 64-bit integers: any push that is
lost, or counted twice, is seen by every later pull.
"""

import argparse
import faulthandler
import signal
import sys
import threading
import time

import numpy as np

from benchmarks.proxy import workers
from dmlcomm import PsConnectionError
from dmlcomm.ps import Client

MODEL = "w"
# What the workers do in a clock, in turns: how often they push, and whether they pull.
TURNS = ((1, True), (2, True), (1, False), (0, True), (3, False))


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    options = workers.parse()
    until = [2**62]
    threading.Thread(target=_read, args=(until,), daemon=True).start()

    def train(worker: int) -> None:
        with _connect(options, worker) as client:
            _train(client, options, worker, until)

    workers.run(options, train)


def _read(until: list[int]) -> None:
    for line in sys.stdin:
        until[0] = int(line.split()[1])


def _connect(options: argparse.Namespace, worker: int) -> Client:
    """The proxy may be dead for a moment before it is used."""
    deadline = time.monotonic() + workers.TIMEOUT_S
    while True:
        try:
            return Client(
                options.servers, worker=worker, proxy=options.proxy, timeout_s=workers.TIMEOUT_S
            )
        except PsConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _train(client: Client, options: argparse.Namespace, worker: int, until: list[int]) -> None:
    places = np.arange(options.count, dtype=np.int64)
    seen = client.init(MODEL, np.zeros(options.count, np.int64), rule="add", reduce="sum")
    factor = options.workers * (options.workers + 1) // 2  # the sum of what follows over workers
    expected = np.zeros(options.count, np.int64)
    clock = 0
    while clock < until[0]:
        pushes, pulls = TURNS[(clock // 2) % len(TURNS)] if clock % 2 else (1, True)
        gradient = places + (clock + 1)
        mine = gradient * (worker + 1)
        if pushes == 1 and pulls:
            seen = client.push_pull(MODEL, mine, out=seen)
        else:
            for _ in range(pushes):
                client.push(MODEL, mine)
            client.clock()
            if pulls:
                seen = client.pull(MODEL, out=seen)
        expected += pushes * factor * gradient
        clock += 1
        if pulls and not np.array_equal(seen, expected):
            wrong = np.flatnonzero(seen != expected)
            where = int(wrong[0])
            raise AssertionError(
                f"after clock {clock}, {len(wrong)} of {len(seen)} sums are wrong: element {where} "
                f"is {seen[where]}, expected {expected[where]}"
            )
        workers.say(f"clock {worker} {clock} {int(client.by_proxy)} {client.way_since}")


if __name__ == "__main__":
    main()
