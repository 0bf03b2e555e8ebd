"""Random operations of process groups, whose results every rank knows beforehand."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Below and above what is sent at once, and what does not divide.
COUNTS = (1, 7, 1000, 10_007, 70_001, 300_000)
# Sums are exact: values are whole numbers below 97 + 10 x rank + 50, and half precision has those
# up to 2048, which are 8 ranks.
DTYPES = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
MOST_CALLS = 6


@dataclass(frozen=True)
class Call:
    """One operation, the same on all ranks.

    Attributes:
        group: index of the group.
        root: the rank, as the whole job counts, that sends or receives.
        peer: another rank of the group.
        waits: at once, instead of with the others at the end.
    """

    kind: str
    group: int
    count: int
    dtype: torch.dtype
    root: int
    peer: int
    salt: int
    waits: bool


@dataclass(frozen=True)
class Group:
    ranks: tuple[int, ...]
    handle: dist.ProcessGroup


@dataclass
class Started:
    """What is under way, and what will be right."""

    works: list[dist.Work | None]
    actual: torch.Tensor
    expected: torch.Tensor


class WrongResultError(Exception):
    """The text says of which operation, and how far."""


def random_groups(rng: random.Random, size: int) -> list[tuple[int, ...]]:
    """All ranks, and some groups of two or more."""
    chosen = [rng.sample(range(size), rng.randint(2, size)) for _ in range(rng.randint(0, 2))]
    return [tuple(range(size)), *(tuple(sorted(ranks)) for ranks in chosen)]


def random_calls(rng: random.Random, groups: Sequence[tuple[int, ...]]) -> list[Call]:
    """What all ranks do next."""
    return [_random_call(rng, groups) for _ in range(rng.randint(1, MOST_CALLS))]


def _random_call(rng: random.Random, groups: Sequence[tuple[int, ...]]) -> Call:
    group = rng.randrange(len(groups))
    root, peer = rng.sample(groups[group], 2)
    return Call(
        kind=rng.choice(list(KINDS)),
        group=group,
        count=rng.choice(COUNTS),
        dtype=rng.choice(DTYPES),
        root=root,
        peer=peer,
        salt=rng.randrange(50),
        waits=rng.random() < 0.5,
    )


def run(calls: Sequence[Call], groups: Sequence[Group], rank: int) -> None:
    """Takes part in those of this rank's groups. Raises WrongResultError, and what they raise."""
    started: list[tuple[Call, Started]] = []
    for call in calls:
        group = groups[call.group]
        if rank not in group.ranks:
            continue
        operation = KINDS[call.kind](call, group, rank)
        if call.waits:
            _finish(call, operation, rank)
        else:
            started.append((call, operation))
    for call, operation in started:
        _finish(call, operation, rank)


def _finish(call: Call, operation: Started, rank: int) -> None:
    for work in operation.works:
        if work is not None:
            work.wait()
    if not torch.equal(operation.actual, operation.expected):
        where = (operation.actual != operation.expected).flatten().nonzero().flatten()
        first = int(where[0])
        raise WrongResultError(
            f"{call}: {len(where)} of {operation.actual.numel()} elements are wrong on rank "
            f"{rank}: element {first} is {operation.actual.flatten()[first].item()}, expected "
            f"{operation.expected.flatten()[first].item()}"
        )


def data(call: Call, rank: int, factor: int = 1) -> torch.Tensor:
    """What a rank puts in: ``factor`` times as many elements."""
    values = torch.arange(call.count * factor) % 97 + 10 * rank + call.salt
    return values.to(call.dtype)


def _total(call: Call, group: Group, factor: int = 1) -> torch.Tensor:
    parts = [data(call, rank, factor) for rank in group.ranks]
    return torch.stack(parts).sum(0, dtype=call.dtype)


def _part(tensor: torch.Tensor, call: Call, index: int) -> torch.Tensor:
    return tensor[index * call.count : (index + 1) * call.count]


def _all_reduce(call: Call, group: Group, rank: int) -> Started:
    tensor = data(call, rank)
    work = dist.all_reduce(tensor, group=group.handle, async_op=True)
    return Started([work], tensor, _total(call, group))


def _broadcast(call: Call, group: Group, rank: int) -> Started:
    tensor = data(call, rank)
    work = dist.broadcast(tensor, call.root, group=group.handle, async_op=True)
    return Started([work], tensor, data(call, call.root))


def _reduce(call: Call, group: Group, rank: int) -> Started:
    tensor = data(call, rank)
    work = dist.reduce(tensor, call.root, group=group.handle, async_op=True)
    is_root = rank == call.root
    return Started([work], tensor, _total(call, group) if is_root else tensor)


def _all_gather(call: Call, group: Group, rank: int) -> Started:
    gathered = torch.empty(call.count * len(group.ranks), dtype=call.dtype)
    work = dist.all_gather_into_tensor(
        gathered, data(call, rank), group=group.handle, async_op=True
    )
    return Started([work], gathered, torch.cat([data(call, each) for each in group.ranks]))


def _reduce_scatter(call: Call, group: Group, rank: int) -> Started:
    factor = len(group.ranks)
    own = torch.empty(call.count, dtype=call.dtype)
    work = dist.reduce_scatter_tensor(
        own, data(call, rank, factor), group=group.handle, async_op=True
    )
    total = _total(call, group, factor)
    return Started([work], own, _part(total, call, group.ranks.index(rank)))


def _all_to_all(call: Call, group: Group, rank: int) -> Started:
    factor = len(group.ranks)
    received = torch.empty(call.count * factor, dtype=call.dtype)
    work = dist.all_to_all_single(
        received, data(call, rank, factor), group=group.handle, async_op=True
    )
    place = group.ranks.index(rank)
    parts = [_part(data(call, each, factor), call, place) for each in group.ranks]
    return Started([work], received, torch.cat(parts))


def _send(call: Call, group: Group, rank: int) -> Started:
    sent = data(call, call.root)
    if rank == call.root:
        return Started([dist.isend(sent, call.peer, group=group.handle)], sent, sent)
    if rank == call.peer:
        received = torch.empty_like(sent)
        work = dist.irecv(received, call.root, group=group.handle)
        return Started([work], received, sent)
    return Started([], sent, sent)


def _barrier(call: Call, group: Group, rank: int) -> Started:
    nothing = torch.empty(0)
    return Started([dist.barrier(group=group.handle, async_op=True)], nothing, nothing)


KINDS: dict[str, Callable[[Call, Group, int], Started]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send": _send,
    "barrier": _barrier,
}
