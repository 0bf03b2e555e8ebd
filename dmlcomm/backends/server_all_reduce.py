"""all_reduce of the default group through the parameter servers, DMLCOMM_ALGORITHM=all_reduce=ps.

An all_reduce is a push_pull of a model with rule "assign": its weights become the sum or the mean
of what the workers push. One **kind** of call (operator, element type, size) has `SLOTS` models,
which take turns, since a model carries one operation at a time (`dmlcomm.ps.worker.census`).

The n-th model that a rank makes has to be what the others' n-th is. So models are named by numbers,
and where ranks call different things the servers refuse the second, with a text that shows both.
"""

import functools
import queue
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.prio.ticket import current_ticket, ticket
from dmlcomm.ps.worker.census import CensusModel
from dmlcomm.ps.worker.client import Client
from dmlcomm.ps.worker.torch_tensors import DTYPES

# How servers reduce, by operator of all_reduce.
REDUCE = {"sum": "sum", "avg": "mean"}

# Models of one kind: so many operations of the kind are under way at once. Each takes the size of
# the tensor on the servers.
SLOTS = 2

# Models stay on the servers: what comes in ever new sizes must not fill them. DDP has one kind per
# size of a bucket.
MAX_KINDS = 256

# Under which rank 0 publishes what tells the models of this group from those of earlier ones.
RUN_KEY = "dmlcomm/server_all_reduce/run"

CONNECT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Kind:
    op: str
    dtype: torch.dtype
    count: int

    def __str__(self) -> str:
        return f"{self.op} of {self.count} x {str(self.dtype).removeprefix('torch.')}"


@dataclass
class _Call:
    kind: Kind
    input: torch.Tensor
    output: torch.Tensor
    operation: Any  # _c10d.ServerOperation
    ticket: int


@dataclass
class _Slot:
    model: CensusModel
    last: "Future[Any] | None" = None


@dataclass
class _Slots:
    slots: list[_Slot] = field(default_factory=list)
    num_calls: int = 0


def for_group(options: Any, priority: int) -> "ServerAllReduce | None":
    """For a new group of c10d's DistributedBackendOptions; None if it is not the default one.

    Args:
        priority: of the job, among those of its hosts.

    Raises:
        CommError: there are no servers, or they are for another number of workers.
        PsError: they do not answer, or do not let this rank in.
    """
    config = _core.config()
    algorithm = str(config["algorithm"])
    setting = f"DMLCOMM_ALGORITHM={algorithm}" if algorithm else f"DMLCOMM_PLAN={config['plan']}"
    if options.global_ranks_in_group:
        _mention_other_groups(setting)
        return None
    servers = str(config["ps_servers"])
    if not servers:
        raise errors.CommError(
            f"invalid_argument: rank {options.group_rank}: {setting} needs parameter servers, and "
            f"DMLCOMM_PS_SERVERS is not set: set it to host:port,host:port, or start with `dmlcomm "
            f"run --servers N -- COMMAND`, or unset {setting.partition('=')[0]}"
        )
    timeout_s = options.timeout.total_seconds()
    client = Client(
        servers,
        worker=options.group_rank,
        timeout_s=timeout_s,
        connect_timeout_s=min(CONNECT_TIMEOUT_S, timeout_s),
        # A rank that was taken for dead must not come back into a sum that is complete without it.
        reconnect_timeout_s=0.0,
        priority=priority,
    )
    try:
        _check_workers(client, options.group_size, setting)
        run = _agree_on_run(options.store, options.group_rank)
    except BaseException:
        client.close()
        raise
    return ServerAllReduce(client, options.group_size, run)


@functools.cache
def _mention_other_groups(setting: str) -> None:
    get_logger().warning(
        "%s is for the default group: all_reduce of other groups goes between their ranks", setting
    )


def _check_workers(client: Client, num_ranks: int, setting: str) -> None:
    if client.num_workers != num_ranks:
        raise errors.CommError(
            f"invalid_argument: rank {client.worker}: {setting}: the parameter servers are for "
            f"{client.num_workers} workers, the group has {num_ranks} ranks: start them with "
            f"--workers {num_ranks}"
        )


def _agree_on_run(store: Any, rank: int) -> str:
    """A word that no other group on these servers has."""
    if rank == 0:
        store.set(RUN_KEY, secrets.token_hex(4))
    return str(store.get(RUN_KEY).decode())


class ServerAllReduce:
    """What csrc/torch/server_all_reduce.h calls. Any thread may; nothing waits for other ranks.

    A thread of its own starts the operations in the order of the calls, since making a model and
    waiting for a slot take until other ranks are there, too.

    Args:
        client: connected as worker `rank`; it is closed with this object.
        num_ranks: of the group.
        run: the same on all ranks, and another one in every group.
    """

    def __init__(self, client: Client, num_ranks: int, run: str) -> None:
        self._client = client
        self._num_ranks = num_ranks
        self._run = run
        self._num_models = 0
        self._refused: set[str] = set()
        self._kinds: dict[Kind, _Slots] = {}
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Guarded by _lock. The first failure: code and text.
        self._failure: tuple[str, str] | None = None
        self._thread = threading.Thread(
            target=self._work, name="dmlcomm-ps-all-reduce", daemon=True
        )
        # Not for that thread, which may wait for other ranks, nor for the one of futures: leaving
        # is what ends their waiting.
        self._leaving = threading.Thread(
            target=lambda: client.close(wait=False), name="dmlcomm-ps-leaving", daemon=True
        )
        self._thread.start()

    def takes(self, op: str, tensor: torch.Tensor) -> bool:
        """Whether the servers do this. If not, the log says why, once for each reason."""
        kind = Kind(op, tensor.dtype, tensor.numel())
        if kind.count == 0:
            return False
        is_dense = tensor.layout == torch.strided
        if is_dense and kind in self._kinds:
            return True
        reason = self._why_not(kind) if is_dense else "they do not add up sparse tensors"
        if not reason:
            self._kinds[kind] = _Slots()
        elif reason not in self._refused:
            self._refused.add(reason)
            get_logger().warning(
                "all_reduce (%s) goes between the ranks and not through the parameter servers: %s",
                kind,
                reason,
            )
        return not reason

    def _why_not(self, kind: Kind) -> str:
        if kind.op not in REDUCE:
            return f"they do not know operator {kind.op}, only {', '.join(REDUCE)}"
        if kind.dtype not in DTYPES:
            return f"they do not know elements of {kind.dtype}"
        if len(self._kinds) == MAX_KINDS:
            return f"they have models for {MAX_KINDS} sizes already, which is the limit"
        return ""

    def start(self, op: str, tensor: torch.Tensor, output: torch.Tensor, operation: Any) -> None:
        """Reduces `tensor` into `output`, then ends `operation`. Both have one dimension."""
        kind = Kind(op, tensor.dtype, tensor.numel())
        call = _Call(kind, tensor, output, operation, current_ticket())
        with self._lock:
            failure = self._failure
            if failure is None:
                self._queue.put(call)
        if failure is not None:
            operation.fail(*failure)

    def set_timeout(self, timeout_s: float) -> None:
        """Of operations that start from now on."""
        self._client.set_timeout(timeout_s)

    def close(self) -> None:
        """Leaves the servers. Pending operations are given up. Idempotent."""
        self._stop("aborted", "the group was closed")
        self._leaving.join()
        self._thread.join()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            self._start(call)
        # Nothing comes into the queue any more, since there is a failure.
        assert self._failure is not None
        while not self._queue.empty():
            late = self._queue.get()
            if late is not None:
                late.operation.fail(*self._failure)

    def _start(self, call: _Call) -> None:
        try:
            slot = self._next_slot(call.kind)
            with ticket(call.ticket):
                slot.last = slot.model.start(
                    call.input, call.output, lambda error: self._end(call, error)
                )
        except Exception as error:
            self._fail(call, error)

    def _next_slot(self, kind: Kind) -> _Slot:
        """The slot whose turn it is, once its last operation has ended."""
        turns = self._kinds[kind]
        turn = turns.num_calls % SLOTS
        turns.num_calls += 1
        if turn == len(turns.slots):
            turns.slots.append(self._make_slot(kind))
        slot = turns.slots[turn]
        if slot.last is not None:
            slot.last.exception()  # a failure is for the call that it belongs to
        return slot

    def _make_slot(self, kind: Kind) -> _Slot:
        name = f"all_reduce.{self._run}.{self._num_models}"
        self._num_models += 1
        like = torch.empty(kind.count, dtype=kind.dtype)
        return _Slot(CensusModel(self._client, name, like, REDUCE[kind.op], self._num_ranks))

    def _end(self, call: _Call, error: BaseException | None) -> None:
        if error is None:
            call.operation.succeed()
        else:
            self._fail(call, error)

    def _fail(self, call: _Call, error: BaseException) -> None:
        text = f"rank {self._client.worker}: all_reduce ({call.kind}) through the parameter servers"
        reason = str(error).removeprefix("peer_lost: ")
        call.operation.fail(*self._stop(_code_of(error), f"{text}: {reason}"))

    def _stop(self, code: str, text: str) -> tuple[str, str]:
        """Begins to leave the servers; the first failure."""
        with self._lock:
            if self._failure is None:
                self._failure = (code, text)
                self._queue.put(None)
                self._leaving.start()
            return self._failure


def _code_of(error: BaseException) -> str:
    """As the errors of process groups have it, whose classes follow from it."""
    lost = errors.PeerLostError | errors.PsServerLostError | errors.PsConnectionError
    if isinstance(error, lost):
        return "peer_lost"
    if isinstance(error, errors.PsTimeoutError):
        return "timeout"
    return "mismatch" if isinstance(error, errors.PsModelError) else "io_error"
