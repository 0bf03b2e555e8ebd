"""The traffic of a parameter server: workers compute, push gradients, and pull weights.

Every server has an equal part of the model, and a tree of its own: the server is the root, and all
workers are nodes. A push goes up: a node waits for its children, adds, and sends one message. A
pull comes down the same tree. Without a tree every worker is a child of the server.

Source: "Optimizing Network Performance in Distributed Machine Learning" (HotCloud 2015).
"""

from collections.abc import Callable, Sequence

OPERATION = "push_pull"

DIRECT, BINARY, RACK, CHAIN = "direct", "binary", "rack", "chain"
TREES = (DIRECT, BINARY, RACK, CHAIN)
# Children of a node that is the aggregator of its rack, in other racks, and of the server.
DEGREE_OF_RACKS = 7

# (tasks that compute, by worker; tasks after which a worker has all weights, by worker)
Step = tuple[list[int], list[int]]


def parents(kind: str, num_workers: int, first: int, racks: Sequence[int]) -> list[int | None]:
    """By worker, the worker above it, or None for the server.

    Args:
        first: trees begin with this worker and go on in order, so that those of several servers
            have their upper nodes on different hosts.
        racks: by worker, the number of its rack.
    """
    order = [(first + i) % num_workers for i in range(num_workers)]
    if kind == DIRECT:
        return [None] * num_workers
    if kind != RACK:
        return _heap(order, 2 if kind == BINARY else 1, num_workers)
    aggregator: dict[int, int] = {}
    for worker in order:
        aggregator.setdefault(racks[worker], worker)
    above = _heap(list(aggregator.values()), DEGREE_OF_RACKS, num_workers)
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
        send: (server, from worker, to worker, tasks that it comes after) adds a message, and gives
            its task; None is the server.
        join: adds a task without duration that comes after others.
    """

    def __init__(
        self,
        parents: Sequence[Sequence[int | None]],
        staleness: int,
        send: Callable[[int, int | None, int | None, Sequence[int]], int],
        join: Callable[[Sequence[int]], int],
    ) -> None:
        self._parents = parents
        self._orders = [_from_the_root(above) for above in parents]
        self._staleness = staleness
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
        waits: list[list[int]] = [[task] for task in computed]
        sent = [-1] * len(computed)
        at_server: list[int] = []
        for worker in reversed(self._orders[server]):
            above = self._parents[server][worker]
            sent[worker] = self._send(server, worker, above, waits[worker])
            (at_server if above is None else waits[above]).append(sent[worker])
        return at_server, sent

    def _pull(self, server: int, complete: list[int], own: Sequence[int]) -> list[int]:
        got = [-1] * len(own)
        for worker in self._orders[server]:
            above = self._parents[server][worker]
            after = [*complete, own[worker]] if above is None else [got[above]]
            got[worker] = self._send(server, above, worker, after)
        return got


def _from_the_root(above: Sequence[int | None]) -> list[int]:
    """Workers in an order in which all come after those above them."""
    below: dict[int | None, list[int]] = {}
    for worker, parent in enumerate(above):
        below.setdefault(parent, []).append(worker)
    order = list(below[None])
    for worker in order:  # which grows
        order += below.get(worker, [])
    return order
