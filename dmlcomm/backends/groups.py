"""Functions on process groups that torch.distributed has for its own backends only."""

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dmlcomm import errors
from dmlcomm.rail import RailCounters

# How much longer the other ranks wait for the verdict of rank 0 than rank 0 waits for them.
_VERDICT_GRACE_S = 5.0

_MONITORED_BARRIER = "dmlcomm/monitored_barrier"


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """A barrier that says which ranks are missing. A rank that is not in the group returns at once.

    It goes through the store of the group and not through its connections: a failure leaves the
    group as it was.

    Args:
        group: the process group; the default one if None.
        timeout: how long to wait; the group's timeout if None.
        wait_all_ranks: name every missing rank, and not only the first.

    Raises:
        CommTimeoutError: on every rank that has arrived, if another one did not within ``timeout``.
        TypeError: the group is not one of backend dmlcomm, and no timeout is given.

    Example:
        >>> dmlcomm.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=True)
    """
    if dist.get_rank(group) < 0:
        return
    group = group or c10d._get_default_group()
    limit = _backend(group).options._timeout if timeout is None else timeout
    wait_s = limit.total_seconds()
    store, rank = c10d._get_process_group_store(group), dist.get_rank(group)
    # Counted in the store: the ranks of one call meet under one number.
    number = store.add(f"{_MONITORED_BARRIER}/calls/{rank}", 1)
    prefix = f"{_MONITORED_BARRIER}/{number}"
    store.set(f"{prefix}/arrived/{rank}", "1")
    if rank == 0:
        missing = _missing_ranks(store, prefix, dist.get_world_size(group), wait_s)
        missing = missing if wait_all_ranks else missing[:1]
        store.set(f"{prefix}/missing", ",".join(map(str, missing)))
    elif _wait(store, f"{prefix}/arrived/0", wait_s):
        missing = _read_verdict(store, prefix, wait_s + _VERDICT_GRACE_S)
    else:
        missing = [0]
    if missing:
        raise errors.CommTimeoutError(_describe_missing(group, missing, wait_s))


def _missing_ranks(store: Any, prefix: str, num_ranks: int, wait_s: float) -> list[int]:
    deadline = time.monotonic() + wait_s
    return [
        rank
        for rank in range(num_ranks)
        if not _wait(store, f"{prefix}/arrived/{rank}", deadline - time.monotonic())
    ]


def _read_verdict(store: Any, prefix: str, wait_s: float) -> list[int]:
    if not _wait(store, f"{prefix}/missing", wait_s):
        return [0]
    return [int(rank) for rank in store.get(f"{prefix}/missing").decode().split(",") if rank]


def _wait(store: Any, key: str, wait_s: float) -> bool:
    """Whether the key is there within the time; a time that has passed still gets one look."""
    if wait_s <= 0:
        return bool(store.check([key]))
    try:
        store.wait([key], timedelta(seconds=wait_s))
    except RuntimeError:  # stores have no error class of their own for "not there yet"
        return bool(store.check([key]))
    return True


def _describe_missing(group: dist.ProcessGroup, missing: list[int], wait_s: float) -> str:
    named = [f"{rank} (global rank {dist.get_global_rank(group, rank)})" for rank in missing]
    return (
        f"timeout: monitored_barrier on rank {dist.get_rank(group)} of "
        f"{dist.get_world_size(group)}: not there within {wait_s:g} s: "
        f"rank {', '.join(named)}; look at what these ranks do, or pass a longer timeout"
    )


def set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
    """Replaces the default deadline of the group's later operations, on this rank.

    Args:
        timeout: from the call of an operation to its end.
        group: the process group; the default one if None.

    Raises:
        TypeError: the group is not one of backend dmlcomm.

    Example:
        >>> dmlcomm.set_timeout(timedelta(minutes=5))
    """
    from dmlcomm import _c10d

    _c10d.set_timeout(_backend(group), timeout)


def abort(reason: str = "abort() was called", group: dist.ProcessGroup | None = None) -> None:
    """Ends every pending and later operation of the group with AbortedError, on every rank.

    Safe from any thread; it unblocks threads that wait. The group can only be destroyed then.

    Args:
        reason: is in the text of the errors.
        group: the process group; the default one if None.

    Raises:
        TypeError: the group is not one of backend dmlcomm.

    Example:
        >>> signal.signal(signal.SIGTERM, lambda *_: dmlcomm.abort("the job is stopped"))
    """
    from dmlcomm import _c10d

    _c10d.abort(_backend(group), reason)


def describe(group: dist.ProcessGroup | None = None) -> str:
    """One line of text: rank, host, transports and rails in use.

    Args:
        group: the process group; the default one if None.

    Raises:
        TypeError: the group is not one of backend dmlcomm.
    """
    from dmlcomm import _c10d

    return _c10d.description(_backend(group))


def rails(group: dist.ProcessGroup | None = None) -> list[RailCounters]:
    """The counters of every rail of this rank. Waits while an operation is being driven.

    Args:
        group: the process group; the default one if None.

    Raises:
        TypeError: the group is not one of backend dmlcomm.

    Example:
        >>> {rail.interface: rail.bytes_sent for rail in dmlcomm.rails()}
        {'eth0': 125000000, 'eth1': 124998144}
    """
    from dmlcomm import _c10d

    return [RailCounters(**counters) for counters in _c10d.rails(_backend(group))]


def counters(group: dist.ProcessGroup | None = None) -> dict[str, float]:
    """The counters of `rails` as numbers with names; `log_counters` gives them to a logger.

    Names are "dmlcomm/eth0/bytes_sent" and so on, of all numbers of `RailCounters`, and
    "dmlcomm/collectives", those that this rank has begun. Counts grow while the group lives.

    Args:
        group: the process group; the default one if None.

    Raises:
        TypeError: the group is not one of backend dmlcomm.

    Example:
        >>> dmlcomm.counters()["dmlcomm/eth0/bytes_sent"]
        125000000.0
    """
    group = group or c10d._get_default_group()
    found = {
        f"dmlcomm/{rail.interface}/{name}": float(value)
        for rail in rails(group)
        for name, value in vars(rail).items()
        if not isinstance(value, str)
    }
    found["dmlcomm/collectives"] = float(_backend(group)._get_sequence_number_for_group())
    return found


def _backend(group: dist.ProcessGroup | None) -> Any:
    """dmlcomm's backend of the group, also below the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL.

    That for CPU tensors, unless only CUDA tensors are dmlcomm's.
    """
    group = group or c10d._get_default_group()
    found = [_unwrapped(group._get_backend(device)) for device in group._device_types]
    return next((backend for backend in found if backend.name() == "dmlcomm"), found[0])


def _unwrapped(backend: Any) -> Any:
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend
