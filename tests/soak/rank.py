"""A rank that takes part in one process group after the other, and compares all results.

It is told ``("group", number)``, and reports when that has ended: "left" in order, or "lost", with
the error.
"""

import itertools
import os
import random
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import dmlcomm
from soak import operations
from soak.link import Link
from soak.members import HANG_S, Usage

# Longer than a hang: it is the test that has to notice that.
TIMEOUT = timedelta(seconds=10 * HANG_S)


def main(link: Link, *, rank: int, size: int, folder: str, seed: int) -> None:
    torch.set_num_threads(1)
    while True:
        _, number = link.next_command()
        kind, value = "left", ""
        try:
            _work(link, rank, size, Path(folder), number, seed)
        except dmlcomm.CommError as error:
            kind, value = "lost", f"{type(error).__name__}: {error}"
        except operations.WrongResultError as error:
            link.wrong(str(error))
        if dist.is_initialized():
            dist.destroy_process_group()
        link.report(kind, (value, Usage.of(os.getpid())))


def _work(link: Link, rank: int, size: int, folder: Path, number: int, seed: int) -> None:
    dist.init_process_group(
        "dmlcomm",
        store=dist.FileStore(str(folder / f"group-{number}"), size),
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
    )
    rng = random.Random(f"{seed} {number}")
    whole, *parts = operations.random_groups(rng, size)
    groups = [operations.Group(whole, dist.group.WORLD)]
    groups += [operations.Group(ranks, dist.new_group(list(ranks))) for ranks in parts]
    for batch in itertools.count(1):
        calls = operations.random_calls(rng, [group.ranks for group in groups])
        operations.run(calls, groups, rank)
        # All end together, whoever sees it first.
        ends = torch.tensor(int((folder / f"end-{number}").exists()))
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        link.progress(batch)
        if ends.item():
            return
