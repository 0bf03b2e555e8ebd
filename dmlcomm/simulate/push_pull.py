"""The traffic of a parameter server: workers compute, push gradients, and pull weights.

Every server has an equal part of the model, and a tree of its own: the server is the root, and all
workers are nodes. A push goes up: a node adds what its children send to its own, and sends one
message. A pull comes down the same tree. Without a tree every worker is a child of the server.

A node sends a message on while it still receives it, chunk by chunk; with chunks as small as can
be, all messages of a tree have one rate, that of its slowest link (`STREAM`).

A server answers when it has all pushes; or piece by piece, as dmlcomm's do in a push_pull.

Source: "Optimizing Network Performance in Distributed Machine Learning" (HotCloud 2015).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random

OPERATION = "push_pull"

DIRECT, BINARY, RACK, CHAIN = "direct", "binary", "rack", "chain"
# As RACK, but all aggregators are right below the server.
FLAT_RACK = "flat_rack"
# As FLAT_RACK, but in a rack each worker has two below it.
BINARY_RACK = "binary_rack"
TREES = (DIRECT, BINARY, RACK, FLAT_RACK, BINARY_RACK, CHAIN)
# A message goes on as soon as its first bytes are there.
STREAM = 0
# Trees of several servers: each begins with another worker and goes on from there, so that all
# workers have as much to do; or has workers in an order of its own; or all are alike.
ROTATED, RANDOM, SAME = "rotated", "random", "same"
ORDERS = (ROTATED, RANDOM, SAME)
# When a server answers pulls: when it has all that is pushed; or each piece when it has that.
WHOLE, PIECES = "whole", "pieces"
ANSWERS = (WHOLE, PIECES)
# A server's part of a model is cut into 64 pieces, but no smaller and no larger ones.
NUM_PIECES, LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 64, 256 << 10, 1 << 20
# A proxy takes the next piece of a child when it has the one before: its grant and the first bytes
# of the piece then stand behind others in sockets and queues, as long as the NIC above needs for so
# many bytes of each tree. Fitted to measurements of one server in the lab, within 8 %; coarse for
# several (docs/simulation.md, "Beside the lab").
GRANT_BYTES = 400_000
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


def parents(
    kind: str, order: Sequence[int], racks: Sequence[int], answer: str = WHOLE
) -> list[int | None]:
    """By worker, the worker above it, or None for the server.

    Args:
        kind: of `TREES`.
        order: all workers, those at the top first.
        racks: by worker, the number of its rack.
        answer: of `ANSWERS`. With `PIECES`, trees are those of dmlcomm's proxies: of `BINARY`, one
            worker is right below the server, not two.
    """
    num_workers = len(order)
    if kind == DIRECT:
        return [None] * num_workers
    if kind == BINARY and answer == PIECES:
        top = _heap(order[1:], 2, num_workers)
        return [order[0] if p is None and w != order[0] else p for w, p in enumerate(top)]
    if kind not in (RACK, FLAT_RACK, BINARY_RACK):
        return _heap(order, 2 if kind == BINARY else 1, num_workers)
    members: dict[int, list[int]] = {}
    for worker in order:
        members.setdefault(racks[worker], []).append(worker)
    degree = DEGREE_OF_RACKS if kind == RACK else len(members)
    above = _heap([of_rack[0] for of_rack in members.values()], degree, num_workers)
    for of_rack in members.values():
        for i, worker in enumerate(of_rack[1:]):
            above[worker] = of_rack[i // 2 if kind == BINARY_RACK else 0]
    return above


def _heap(order: Sequence[int], degree: int, num_workers: int) -> list[int | None]:
    """Place 0 is the server; places p degree + 1, ... are below place p."""
    above: list[int | None] = [None] * num_workers
    for place, worker in enumerate(order, start=1):
        parent = (place - 1) // degree
        above[worker] = order[parent - 1] if parent else None
    return above


def num_pieces(message_bytes: float) -> int:
    """Of a server's part of a model."""
    piece_bytes = min(max(message_bytes / NUM_PIECES, LEAST_PIECE_BYTES), MOST_PIECE_BYTES)
    return max(1, math.ceil(message_bytes / piece_bytes))


class Traffic:
    """Adds the tasks of a job, step by step.

    Args:
        parents: by server, as `parents`.
        staleness: a worker goes on when the weights have all pushes but those of so many last
            steps, and its own.
        num_chunks: of a message; `STREAM` for chunks as small as can be.
        answer: of `ANSWERS`; with `PIECES`, chunks are the pieces.
        send: (server, edges that it passes at once, tasks that it comes after) adds a chunk, and
            gives its task.
        join: adds a task without duration that comes after others.
        grant: (server, edge, a piece's task) adds one that ends when the next piece of a tree may
            go up that edge.
    """

    def __init__(
        self,
        parents: Sequence[Sequence[int | None]],
        staleness: int,
        num_chunks: int,
        answer: str,
        send: Callable[[int, Sequence[Edge], Sequence[int]], int],
        join: Callable[[Sequence[int]], int],
        grant: Callable[[int, Edge, int], int],
    ) -> None:
        self._parents = parents
        self._orders = [_from_the_root(above) for above in parents]
        self._staleness = staleness
        self._num_chunks = num_chunks
        self._answer = answer
        self._send = send
        self._join = join
        self._grant = grant
        # By step, server and chunk: what a pull waits for.
        self._complete: list[list[list[int]]] = []

    def add_step(self, computed: Sequence[int]) -> list[int]:
        """The tasks after which workers have their weights. ``computed``: by worker, a task."""
        arrived = [self._push(server, computed) for server in range(len(self._parents))]
        self._complete.append([self._answers(pushes) for pushes, _ in arrived])
        step = len(self._complete) - 1 - self._staleness
        pulled: list[list[int]] = [[] for _ in computed]
        for server, (_, own) in enumerate(arrived):
            complete = self._complete[step][server] if step >= 0 else []
            for worker, task in enumerate(self._pull(server, complete, own)):
                pulled[worker].append(task)
        return [self._join(tasks) for tasks in pulled]

    def _answers(self, pushes: Sequence[Sequence[int]]) -> list[int]:
        """By chunk, when a server answers. ``pushes``: the chunks of each message to it."""
        if self._answer == PIECES:
            return [self._join(chunks) for chunks in zip(*pushes, strict=True)]
        return [self._join([chunks[-1] for chunks in pushes])] * len(pushes[0])

    def _push(
        self, server: int, computed: Sequence[int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The messages that the server gets; and by worker, the one that it sends; as chunks."""
        above = self._parents[server]
        if self._num_chunks == STREAM:
            task = self._send(server, list(enumerate(above)), computed)
            return [[task]], [[task]] * len(computed)
        waits = [[[task] for _ in range(self._num_chunks)] for task in computed]
        messages: list[list[int]] = [[] for _ in computed]
        for worker in reversed(self._orders[server]):
            edge = worker, above[worker]
            sent = self._send_in_order(server, edge, waits[worker], is_up=True)
            messages[worker] = sent
            if (parent := above[worker]) is not None:
                for tasks, task in zip(waits[parent], sent, strict=True):
                    tasks.append(task)
        roots = [messages[worker] for worker, parent in enumerate(above) if parent is None]
        return roots, messages

    def _pull(
        self, server: int, complete: Sequence[int], own: Sequence[Sequence[int]]
    ) -> list[int]:
        """By worker, the last chunk that it gets. ``complete``, by chunk, and ``own``, by worker
        and chunk, are what it waits for."""
        above = self._parents[server]
        if self._num_chunks == STREAM:
            edges = [(parent, worker) for worker, parent in enumerate(above)]
            after = complete or sorted({message[-1] for message in own})
            return [self._send(server, edges, after)] * len(above)
        got: list[list[int]] = [[] for _ in own]
        for worker in self._orders[server]:
            parent = above[worker]
            waits = [[task] for task in got[parent]] if parent is not None else []
            if parent is None:
                pieces = self._answer == PIECES
                mine = own[worker] if pieces else [own[worker][-1]] * self._num_chunks
                waits = [[task, *complete[i : i + 1]] for i, task in enumerate(mine)]
            got[worker] = self._send_in_order(server, (parent, worker), waits)
        return [tasks[-1] for tasks in got]

    def _send_in_order(
        self, server: int, edge: Edge, waits: Sequence[Sequence[int]], is_up: bool = False
    ) -> list[int]:
        """Chunks over one edge. ``waits``: by chunk, tasks that it comes after."""
        sent: list[int] = []
        for after in waits:
            before = sent[-1:]
            if is_up and before:
                before = [self._grant(server, edge, before[0])]
            sent.append(self._send(server, [edge], [*after, *before]))
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
