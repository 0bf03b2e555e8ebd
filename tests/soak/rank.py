"""A rank that takes part in one process group after the other, and compares all results.

It is told how it comes to the next group, and reports when that has ended: "left" in order, or
"lost", with the error.

- ``("group", number)``: all ranks make one.
- ``("shrink", number, rank)``: the group goes on without this rank of it.
- ``("reconfigure", number, members)``: these meet, in this order, in the group that each has had
  from the begin.
"""

import gc
import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import dmlcomm
from soak import operations
from soak.faults import Failure
from soak.link import Link
from soak.members import HANG_S, Usage
from soak.training import Training

# Longer than a hang: it is the test that has to notice that.
TIMEOUT = timedelta(seconds=10 * HANG_S)

# Work whose group goes on with other members.
ELASTIC = ("shrinking", "reconfiguring")

# What ranks do in a group: random numbers that are the same on all, and whether all shall end now.
Work = Callable[[Link, random.Random, Callable[[], bool]], None]


def main(link: Link, *, rank: int, size: int, folder: str, seed: int, work: str) -> None:
    """``work``: of `groups.Setting`."""
    torch.set_num_threads(1)
    run: Work = random_operations if work == "operations" else Training(rank).run
    groups = Groups(rank, size, Path(folder), is_elastic=work in ELASTIC)
    while True:
        way, number, *rest = link.next_command()
        kind, value = "left", ""
        try:
            getattr(groups, way)(number, *rest)
            run(link, random.Random(f"{seed} {number}"), groups.ends)
        except dmlcomm.CommError as error:
            kind, value = "lost", f"{type(error).__name__}: {error}"
        except operations.WrongResultError as error:
            link.wrong(Failure.WRONG_SUM, str(error))
        gc.collect()  # the DDP of a lost group would take part in gradients
        groups.leave()
        link.report(kind, (value, Usage.own()))


class Groups:
    """The groups of a rank, one after the other. An elastic one stays until the next `group`."""

    def __init__(self, rank: int, size: int, folder: Path, is_elastic: bool) -> None:
        self._rank = rank
        self._size = size
        self._folder = folder
        self._is_elastic = is_elastic
        self._number = 0

    def group(self, number: int) -> None:
        self._end()
        self._number = number
        store = dist.FileStore(str(self._folder / f"group-{number}"), self._size)
        self._init(store)

    def shrink(self, number: int, rank: int) -> None:
        self._number = number
        dist.shrink_group([rank], shrink_flags=distributed_c10d.SHRINK_ABORT)

    def reconfigure(self, number: int, members: list[int]) -> None:
        self._number = number
        store = dist.FileStore(str(self._folder / "members"))
        if not dist.is_initialized():
            self._init(store, enable_reconfigure=True)
        own = distributed_c10d._get_reconfigure_handle()
        store.set(f"handle/{number}/{self._rank}", own)
        handles = [store.get(f"handle/{number}/{member}").decode() for member in members]
        distributed_c10d._reconfigure(uuid=number, handles=handles).wait()

    def ends(self) -> bool:
        """All together, whoever sees it first."""
        flag = torch.tensor(int((self._folder / f"end-{self._number}").exists()))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def leave(self) -> None:
        if not self._is_elastic:
            self._end()

    def _init(self, store: dist.Store, **options: bool) -> None:
        dist.init_process_group(
            "dmlcomm",
            store=store,
            rank=self._rank,
            world_size=self._size,
            timeout=TIMEOUT,
            **options,
        )

    def _end(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def random_operations(link: Link, rng: random.Random, ends: Callable[[], bool]) -> None:
    whole, *parts = operations.random_groups(rng, dist.get_world_size())
    groups = [operations.Group(whole, dist.group.WORLD)]
    groups += [operations.Group(ranks, dist.new_group(list(ranks))) for ranks in parts]
    for batch in itertools.count(1):
        calls = operations.random_calls(rng, [group.ranks for group in groups])
        operations.run(calls, groups, dist.get_rank())
        has_ended = ends()
        link.progress(batch)
        if has_ended:
            return
