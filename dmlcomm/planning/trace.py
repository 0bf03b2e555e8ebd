"""What each rank does in an operation, as other simulators want it: see `goal` and `chakra`.

Both formats have one graph per rank, of sends, receipts and computing. A message waits for what
the steps at both of its ends wait for, each end for its own rank's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dmlcomm import _core


class Kind(Enum):
    """What a node does."""

    SEND = "send"
    RECEIVE = "recv"
    COMPUTE = "calc"


@dataclass(frozen=True)
class Node:
    """One thing that a rank does.

    Attributes:
        after: positions of nodes of the same rank that end before this one begins.
        peer, num_bytes, tag, rail: of a message. The tag is the only one between the two ranks;
            the rail is None where the message takes all of them, or stays inside a host.
        seconds: of computing.
    """

    kind: Kind
    after: tuple[int, ...]
    peer: int = 0
    num_bytes: int = 0
    tag: int = 0
    rail: int | None = None
    seconds: float = 0.0


def nodes_of_ranks(tasks: Sequence[_core.Task], num_ranks: int) -> list[list[Node]]:
    """Of every rank, the nodes in an order in which each stands after those it waits for."""
    return _Collector(tasks, num_ranks).collect()


class _Collector:
    def __init__(self, tasks: Sequence[_core.Task], num_ranks: int) -> None:
        self._tasks = tasks
        self._nodes: list[list[Node]] = [[] for _ in range(num_ranks)]
        # By task: rank -> position of the node that stands for it there.
        self._places: list[dict[int, int]] = []
        self._tags: Counter[tuple[int, int]] = Counter()

    def collect(self) -> list[list[Node]]:
        for task in self._tasks:
            self._places.append({})
            if task.kind == "message":
                self._add_message(task)
            elif task.kind == "work":
                after = self._after(task, task.rank)
                self._add(task.rank, Node(Kind.COMPUTE, after, seconds=task.seconds))
        return self._nodes

    def _add_message(self, task: _core.Task) -> None:
        (post,) = (self._tasks[index] for index in task.after)
        sender, receiver, num_bytes = task.rank, task.receiver, round(task.bytes)
        tag = self._tags[sender, receiver]
        self._tags[sender, receiver] += 1
        rail = task.hops[0][2] if task.hops else None
        for kind, rank, peer in (
            (Kind.SEND, sender, receiver),
            (Kind.RECEIVE, receiver, sender),
        ):
            self._add(rank, Node(kind, self._after(post, rank), peer, num_bytes, tag, rail))

    def _after(self, task: _core.Task, rank: int) -> tuple[int, ...]:
        places = (self._places[index].get(rank) for index in task.after)
        return tuple(place for place in places if place is not None)

    def _add(self, rank: int, node: Node) -> None:
        self._places[-1][rank] = len(self._nodes[rank])
        self._nodes[rank].append(node)
