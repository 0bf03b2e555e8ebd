"""A rank that takes part in one process group after the other, and compares all results.

It is told ``("group", number)``, and reports when that has ended: "left" in order, or "lost", with
the error.
"""

import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import dmlcomm
from soak import operations
from soak.faults import Failure
from soak.link import Link
from soak.members import HANG_S, Usage
from soak.training import Training

# Longer than a hang: it is the test that has to notice that.
TIMEOUT = timedelta(seconds=10 * HANG_S)

# What ranks do in a group: random numbers that are the same on all, and whether all shall end now.
Work = Callable[[Link, random.Random, Callable[[], bool]], None]


def main(link: Link, *, rank: int, size: int, folder: str, seed: int, work: str) -> None:
    """``work``: "operations" or "training"."""
    torch.set_num_threads(1)
    run: Work = Training(rank, size).run if work == "training" else random_operations
    while True:
        _, number = link.next_command()
        kind, value = "left", ""
        try:
            _in_group(link, run, rank, size, Path(folder), number, seed)
        except dmlcomm.CommError as error:
            kind, value = "lost", f"{type(error).__name__}: {error}"
        except operations.WrongResultError as error:
            link.wrong(Failure.WRONG_SUM, str(error))
        if dist.is_initialized():
            dist.destroy_process_group()
        link.report(kind, (value, Usage.own()))


def _in_group(
    link: Link, run: Work, rank: int, size: int, folder: Path, number: int, seed: int
) -> None:
    dist.init_process_group(
        "dmlcomm",
        store=dist.FileStore(str(folder / f"group-{number}"), size),
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
    )

    def ends() -> bool:
        """All together, whoever sees it first."""
        flag = torch.tensor(int((folder / f"end-{number}").exists()))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    run(link, random.Random(f"{seed} {number}"), ends)


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
