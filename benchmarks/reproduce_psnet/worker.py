"""One worker of the parameter server: replays batches on its host of the lab.

worker.py SERVERS CASES      "host:port,host:port", a JSON list of cases

Prints one JSON object per case: by step the moments between its phases, by a clock that all
processes of the machine share, and how many weights are wrong in the end.
"""

import json
import os
import sys
import time

import numpy as np

from benchmarks.reproduce_psnet.cases import Case
from dmlcomm.ps import Client

WARMUP = 1

# Of a push or pull; the longest that is measured takes some ten seconds.
TIMEOUT_S = 300


class Worker:
    """Batches of one case, with real gradients whose sum says whether all of them have arrived.

    Worker w pushes w + 1 everywhere; servers add the sum of all workers to the weights.
    """

    def __init__(self, client: Client, workers: int, case: Case, number: int) -> None:
        self._client = client
        self._workers = workers
        self._case = case
        self._plan = case.batch
        # Buckets become ready one by one, so each is a model of its own.
        self._names = [f"case{number}.bucket{i}" for i in range(len(self._plan.buckets))]
        self._weights = [np.zeros(b.elements, np.float32) for b in self._plan.buckets]
        gradient = np.float32(client.worker + 1)
        self._gradients = [np.full(b.elements, gradient) for b in self._plan.buckets]
        for name, weights in zip(self._names, self._weights, strict=True):
            client.init(name, weights, rule="add", reduce="sum")

    def run(self) -> dict:
        """All steps, then a look at the weights."""
        step = self._transfer if self._case.apart else self._batch
        steps = WARMUP + self._case.steps
        self._client.barrier()
        moments = [step(number) for number in range(steps)]
        self._client.barrier()
        self._pull(staleness=0)
        expected = steps * self._workers * (self._workers + 1) // 2
        wrong = sum(int((weights != expected).sum()) for weights in self._weights)
        return {"worker": self._client.worker, "moments": moments[WARMUP:], "wrong": wrong}

    def _batch(self, step: int) -> list[float]:
        """Moments: begin, end of computing, end of pushing, end of pulling."""
        stretch = self._case.stretch(self._client.worker, self._workers, step)
        begin = time.monotonic()
        pushes = []
        for i, bucket in enumerate(self._plan.buckets):
            _wait_until(begin + stretch * bucket.ready_s)
            pushes.append(self._client.push_async(self._names[i], self._gradients[i]))
        computed = time.monotonic()
        for push in pushes:
            push.result()
        self._client.clock()
        pushed = time.monotonic()
        self._pull(self._case.staleness)
        return [begin, computed, pushed, time.monotonic()]

    def _transfer(self, _: int) -> list[float]:
        """Moments: begin and end of pushing, of pulling; all workers begin at once."""
        self._client.barrier()
        moments = [time.monotonic()]
        pairs = zip(self._names, self._gradients, strict=True)
        for push in [self._client.push_async(name, gradient) for name, gradient in pairs]:
            push.result()
        moments.append(time.monotonic())
        self._client.clock()
        self._client.barrier()
        moments.append(time.monotonic())
        self._pull(staleness=0)
        return [*moments, time.monotonic()]

    def _pull(self, staleness: int) -> None:
        pairs = zip(self._names, self._weights, strict=True)
        for pull in [self._client.pull_async(name, staleness, out=out) for name, out in pairs]:
            pull.result()


def _wait_until(moment: float) -> None:
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def main() -> None:
    servers, cases = sys.argv[1], [Case(**case) for case in json.loads(sys.argv[2])]
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with Client(servers, worker=rank, timeout_s=TIMEOUT_S) as client:
        for number, case in enumerate(cases):
            result = Worker(client, workers, case, number).run()
            print(json.dumps({"case": number} | result), flush=True)


if __name__ == "__main__":
    main()
