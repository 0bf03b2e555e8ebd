"""A rank of four is killed while they train with DDP: the others go on, or another takes its place.

Times are read from the clock of the host, which all processes share.
"""

import gc
import os
import signal
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import dmlcomm
from benchmarks.ranks import Ranks, Worker
from benchmarks.row import Row
from benchmarks.trust.training import make_model, stepper

NUM_RANKS = 4
KILLED = 2
STEPS_BEFORE = 20
STEPS_AFTER = 5
MOST_SHRINK_S = 2.0
MOST_RECONFIGURE_S = 5.0
TRANSPORTS = ("auto", "tcp")
ROUNDS = 3
TIMEOUT = timedelta(seconds=60)


def shrink(quick: bool) -> list[Row]:
    return _rows("shrink", NUM_RANKS, train_and_shrink, MOST_SHRINK_S, quick)


def reconfigure(quick: bool) -> list[Row]:
    if not hasattr(dist.ProcessGroup, "reconfigure"):
        return []
    return _rows("reconfigure", NUM_RANKS + 1, train_and_replace, MOST_RECONFIGURE_S, quick)


def _rows(experiment: str, num_ranks: int, function, most_s: float, quick: bool) -> list[Row]:
    """The slowest of several rounds of each transport."""
    rows = []
    for transport in TRANSPORTS:
        rounds = [_round(num_ranks, function, transport) for _ in range(1 if quick else ROUNDS)]
        row = Row(
            experiment,
            f"{experiment}, {transport}",
            max(seconds for seconds, _ in rounds),
            bound_s=most_s,
            most_of_bound=1.0,
            wrong=sum(wrong for _, wrong in rounds),
            remark="rounds: " + ", ".join(f"{seconds:.2f} s" for seconds, _ in rounds),
        )
        rows.append(row)
    return rows


def _round(num_ranks: int, function, transport: str) -> tuple[float, int]:
    """Seconds until the last one's step, and how many have other weights than the first one."""
    survivors = [rank for rank in range(num_ranks) if rank != KILLED]
    environment = {"DMLCOMM_TRANSPORT": transport}
    with (
        tempfile.TemporaryDirectory(prefix="dmlcomm-bench-") as folder,
        Ranks(num_ranks, ["dmlcomm"], environment) as ranks,
    ):
        results = ranks.call_until_some_die(survivors, function, folder)
        begin = float(Path(folder, "begin").read_text())
    end = max(stepped for stepped, _ in results)
    first = results[0][1]
    return end - begin, sum(weights != first for _, weights in results)


def train_and_shrink(worker: Worker, folder: str) -> tuple[float, list]:
    """When this rank had made the first step after the loss, and its weights in the end."""
    model = make_model(worker.rank)
    group = worker.group("dmlcomm")
    with suppress(dmlcomm.PeerLostError):
        _train(model, group, Path(folder, "begin") if worker.rank == KILLED else None)
    gc.collect()  # the DDP of before, which would take part in the gradients
    smaller = dist.shrink_group([KILLED], group=group, shrink_flags=c10d.SHRINK_ABORT)
    return _train_on(model, smaller)


def train_and_replace(worker: Worker, folder: str) -> tuple[float, list]:
    """The same; the last process waits for the loss, and takes the place of the lost one."""
    is_newcomer = worker.rank == NUM_RANKS
    place = KILLED if is_newcomer else worker.rank
    dist.destroy_process_group()  # gloo's: members change in the default group only
    store = dist.FileStore(str(Path(folder, "store")), NUM_RANKS + 1)
    if is_newcomer:
        store.wait(["lost"], TIMEOUT)
        Path(folder, "begin").write_text(str(time.monotonic()))
    dist.init_process_group(
        "dmlcomm", store=store, rank=place, world_size=NUM_RANKS, enable_reconfigure=True
    )
    model = make_model(worker.rank)
    if not is_newcomer:
        _form(store, 1, place)
        try:
            _train(model, dist.group.WORLD, Path(folder, "death") if place == KILLED else None)
        except dmlcomm.PeerLostError:
            store.set("lost", "")
        gc.collect()
    _form(store, 2, place)
    return _train_on(model, dist.group.WORLD)


def _form(store: dist.Store, number: int, place: int) -> None:
    """The members meet as group ``number``."""
    store.set(f"handle/{number}/{place}", c10d._get_reconfigure_handle())
    handles = [store.get(f"handle/{number}/{p}").decode() for p in range(NUM_RANKS)]
    c10d._reconfigure(uuid=number, handles=handles).wait()


def _train(model: torch.nn.Module, group: dist.ProcessGroup, death: Path | None) -> None:
    """Steps until a peer is lost. With ``death`` this rank kills itself, and notes when there."""
    step = stepper(model, group)
    for number in range(1_000_000):
        if death and number == STEPS_BEFORE:
            death.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        step()
    raise AssertionError("no peer was lost")


def _train_on(model: torch.nn.Module, group: dist.ProcessGroup) -> tuple[float, list]:
    step = stepper(model, group)
    step()
    stepped = time.monotonic()
    for _ in range(STEPS_AFTER):
        step()
    return stepped, [parameter.tolist() for parameter in model.parameters()]
