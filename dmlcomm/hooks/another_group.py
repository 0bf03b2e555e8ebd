"""Another process group of the same ranks, which only these make."""

import contextlib
import inspect
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dmlcomm.hooks.group_options import options_of


def another_group(
    process_group: dist.ProcessGroup | None,
    pg_options: Any = None,
) -> dist.ProcessGroup:
    """A group of the ranks of `process_group`, with its backend and timeout. All of them call it,
    after the same operations of `process_group`; other ranks need not.

    torch names a group by a count, which each rank adds to when it makes one. With its names, ranks
    that have made such a group and others would look for each other under different names from
    then on, until the timeout. So its first rank draws this name, and torch counts nothing.

    Args:
        process_group: None: all ranks.
        pg_options: as of `torch.distributed.new_group`; None: the default ones.
    """
    name = [f"dmlcomm-{secrets.token_hex(8)}"]
    dist.broadcast_object_list(name, group_src=0, group=process_group)
    # Ranks keep their numbers. torch without this argument sorts those of the other group, too.
    takes_order = "sort_ranks" in inspect.signature(dist.new_group).parameters
    order: dict[str, Any] = {"sort_ranks": False} if takes_order else {}
    with _next_name(name[0]):
        made = dist.new_group(
            dist.get_process_group_ranks(process_group),
            timeout=getattr(options_of(process_group or dist.group.WORLD), "_timeout", None),
            backend=dist.get_backend_config(process_group),
            pg_options=pg_options,
            use_local_synchronization=True,
            **order,
        )
    assert isinstance(made, dist.ProcessGroup)
    assert made.group_name == name[0], "torch has another way to name groups"
    return made


@contextlib.contextmanager
def _next_name(name: str) -> Iterator[None]:
    """The name of the first group that this thread makes inside; all others have torch's."""
    module: Any = c10d
    before = module._process_group_name
    names, thread = [name], threading.get_ident()

    def take(*arguments: Any, **options: Any) -> str:
        if not names or threading.get_ident() != thread:
            return str(before(*arguments, **options))
        put_back()
        return names.pop()

    def put_back() -> None:
        if module._process_group_name is take:  # else that of another thread comes to it
            module._process_group_name = before

    module._process_group_name = take
    try:
        yield
    finally:
        put_back()
        names.clear()
