"""The traffic of a parameter server: workers compute, push gradients, and pull weights.

Every server has an equal part of the model, and a tree of its own: the server is the root, and all
workers are nodes. A push goes up: a node adds what its children send to its own, and sends one
message. A pull comes down the same tree. Without a tree every worker is a child of the server.

A node sends a message on while it still receives it, chunk by chunk; with chunks as small as can
be, all messages of a tree have one rate, that of its slowest link (`STREAM`).

Source: "Optimizing Network Performance in Distributed Machine Learning" (HotCloud 2015).
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random

OPERATION = "push_pull"

DIRECT, BINARY, RACK, CHAIN = "direct", "binary", "rack", "chain"
# As RACK, but all aggregators are right below the server.
FLAT_RACK = "flat_rack"
TREES = (DIRECT, BINARY, RACK, FLAT_RACK, CHAIN)
# A message goes on as soon as its first bytes are there.
STREAM = 0
# Trees of several servers: each begins with another worker and goes on from there, so that all
# workers have as much to do; or has workers in an order of its own; or all are alike.
ROTATED, RANDOM, SAME = "rotated", "random", "same"
ORDERS = (ROTATED, RANDOM, SAME)
# Children of a node that is the aggregator of its rack, in other racks, and of the server.
DEGREE_OF_RACKS = 7

# (tasks that compute, by worker; tasks after which a worker has all weights, by worker)
Step = tuple[list[int], list[int]]
# From a worker to a worker; None is the server.
Edge = tuple[int | None, int | None]


def orders(kind: str, num_workers: int, num_servers: int, random: Random) -> Iterator[list[int]]:
    """By server, its workers in the order in which its tree takes them. ``kind``: of `ORDERS`."""
    for server in range(num_servers):
        first = server * num_workers // num_servers if kind == ROTATED else 0
        order = [(first + i) % num_workers for i in range(num_workers)]
        if kind == RANDOM:
            random.shuffle(order)
        yield order


def parents(kind: str, order: Sequence[int], racks: Sequence[int]) -> list[int | None]:
    """By worker, the worker above it, or None for the server.

    Args:
        kind: of `TREES`.
        order: all workers, those at the top first.
        racks: by worker, the number of its rack.
    """
    num_workers = len(order)
    if kind == DIRECT:
        return [None] * num_workers
    if kind not in (RACK, FLAT_RACK):
        return _heap(order, 2 if kind == BINARY else 1, num_workers)
    aggregator: dict[int, int] = {}
    for worker in order:
        aggregator.setdefault(racks[worker], worker)
    degree = DEGREE_OF_RACKS if kind == RACK else len(aggregator)
    above = _heap(list(aggregator.values()), degree, num_workers)
    for worker in range(num_workers):
        if aggregator[racks[worker]] != worker:
            above[worker] = aggregator[racks[worker]]
    return above


def _heap(order: Sequence[int], degree: int, num_workers: int) -> list[int | None]:
    """Place 0 is the server; places p degree + 1, ... are below place p."""
    above: list[int | None] = [None] * num_workers
    for place, worker in enumerate(order, start=1):
        parent = (place - 1) // degree
        above[worker] = order[parent - 1] if parent else None
    return above


class Traffic:
    """Adds the tasks of a job, step by step.

    Args:
        parents: by server, as `parents`.
        staleness: a worker goes on when the weights have all pushes but those of so many last
            steps, and its own.
        num_chunks: of a message; `STREAM` for chunks as small as can be.
        send: (server, edges that it passes at once, tasks that it comes after) adds a chunk, and
            gives its task.
        join: adds a task without duration that comes after others.
    """

    def __init__(
        self,
        parents: Sequence[Sequence[int | None]],
        staleness: int,
        num_chunks: int,
        send: Callable[[int, Sequence[Edge], Sequence[int]], int],
        join: Callable[[Sequence[int]], int],
    ) -> None:
        self._parents = parents
        self._orders = [_from_the_root(above) for above in parents]
        self._staleness = staleness
        self._num_chunks = num_chunks
        self._send = send
        self._join = join
        self._complete: list[list[int]] = []  # by step and server: all pushes have arrived

    def add_step(self, computed: Sequence[int]) -> list[int]:
        """The tasks after which workers have their weights. ``computed``: by worker, a task."""
        arrived = [self._push(server, computed) for server in range(len(self._parents))]
        self._complete.append([self._join(pushes) for pushes, _ in arrived])
        step = len(self._complete) - 1 - self._staleness
        pulled: list[list[int]] = [[] for _ in computed]
        for server, (_, own) in enumerate(arrived):
            complete = [self._complete[step][server]] if step >= 0 else []
            for worker, task in enumerate(self._pull(server, complete, own)):
                pulled[worker].append(task)
        return [self._join(tasks) for tasks in pulled]

    def _push(self, server: int, computed: Sequence[int]) -> tuple[list[int], list[int]]:
        """The messages that the server gets; and by worker, the one that it sends."""
        above = self._parents[server]
        if self._num_chunks == STREAM:
            task = self._send(server, list(enumerate(above)), computed)
            return [task], [task] * len(computed)
        waits = [[[task] for _ in range(self._num_chunks)] for task in computed]
        last = [-1] * len(computed)
        for worker in reversed(self._orders[server]):
            sent = self._send_in_order(server, (worker, above[worker]), waits[worker])
            last[worker] = sent[-1]
            if (parent := above[worker]) is not None:
                for tasks, task in zip(waits[parent], sent, strict=True):
                    tasks.append(task)
        return [last[worker] for worker, parent in enumerate(above) if parent is None], last

    def _pull(self, server: int, complete: list[int], own: Sequence[int]) -> list[int]:
        """By worker, the last chunk that it gets."""
        above = self._parents[server]
        if self._num_chunks == STREAM:
            edges = [(parent, worker) for worker, parent in enumerate(above)]
            after = complete or sorted(set(own))
            return [self._send(server, edges, after)] * len(above)
        got: list[list[int]] = [[] for _ in own]
        for worker in self._orders[server]:
            parent = above[worker]
            first = [*complete, own[worker]]
            waits = [first] * self._num_chunks if parent is None else [[t] for t in got[parent]]
            got[worker] = self._send_in_order(server, (parent, worker), waits)
        return [tasks[-1] for tasks in got]

    def _send_in_order(self, server: int, edge: Edge, waits: Sequence[Sequence[int]]) -> list[int]:
        """Chunks over one edge. ``waits``: by chunk, tasks that it comes after."""
        sent: list[int] = []
        for after in waits:
            sent.append(self._send(server, [edge], [*after, *sent[-1:]]))
        return sent


def _from_the_root(above: Sequence[int | None]) -> list[int]:
    """Workers in an order in which all come after those above them."""
    below: dict[int | None, list[int]] = {}
    for worker, parent in enumerate(above):
        below.setdefault(parent, []).append(worker)
    order = list(below[None])
    for worker in order:  # which grows
        order += below.get(worker, [])
    return order
