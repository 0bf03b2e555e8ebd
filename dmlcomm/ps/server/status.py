"""The state of a server, as a message."""

import importlib.metadata
import secrets
import threading
import time
from typing import Any

from dmlcomm import _core
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.server.membership import Membership
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.rates import Rates

Values = dict[str, Any]


class ServerView:
    """The state and the counters of the server. Any thread may call."""

    def __init__(
        self, core: _core.PsServer, server: int, num_servers: int, num_workers: int, replicas: int
    ) -> None:
        self.server = server
        self.replicas = replicas
        self._core = core
        self.num_servers = num_servers
        self._num_workers = num_workers
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self._checkpoints: dict[str, Any] = {}
        self._rates = Rates()
        self.ready = False
        self._instance = secrets.token_hex(8)

    def add_checkpoint(self, model: str, clock: int) -> None:
        with self._lock:
            status = self._checkpoint_of(model)
            status.clock, status.unix_time, status.failure = clock, time.time(), ""

    def add_checkpoint_failure(self, model: str, reason: str) -> None:
        with self._lock:
            status = self._checkpoint_of(model)
            status.failures += 1
            status.failure = reason

    def _checkpoint_of(self, model: str) -> Any:
        """With the lock."""
        return self._checkpoints.setdefault(model, pb.CheckpointStatus(model=model))

    def read_rates(self, core_status: Values) -> None:
        """Compares the NICs' counters with those of the call before."""
        self._rates.read(
            {
                rail["interface"]: (rail["bytes_sent"], rail["bytes_received"])
                for rail in core_status["rails"]
            }
        )

    def health(self) -> Any:
        return pb.HealthReply(
            ready=self.ready,
            version=version(),
            server=self.server,
            num_servers=self.num_servers,
            replicas=self.replicas,
            lost_servers=self._core.lost_servers(),
            num_workers=self._num_workers,
            instance=self._instance,
            lives=self._core.lives()[: self.num_servers],
            is_filling=self._core.is_filling(),
        )

    def status(self, membership: Membership, models: Models) -> Any:
        status = self._core.status()
        with self._lock:
            checkpoints = list(map(_copy, self._checkpoints.values()))
        return pb.StatusReply(
            server=self.server,
            num_servers=self.num_servers,
            num_workers=self._num_workers,
            replicas=self.replicas,
            version=version(),
            host=_core.host_name(),
            uptime_s=time.monotonic() - self._since,
            queue=sum(worker["queued"] for worker in status["workers"]),
            workers=[
                *(_worker(w, status["models"], membership) for w in status["workers"]),
                *_carried(status["models"], membership),
            ],
            models=[_model(model, models.descriptions()) for model in status["models"]],
            rails=[_rail(rail, self._rates) for rail in status["rails"]],
            checkpoints=checkpoints,
            lost_servers=self._core.lost_servers(),
        )


def _copy(status: Any) -> Any:
    copied = pb.CheckpointStatus()
    copied.CopyFrom(status)
    return copied


def version() -> str:
    return importlib.metadata.version("dmlcomm")


def alive_workers(core_status: Values) -> set[int]:
    return {worker["worker"] for worker in core_status["workers"] if worker["connected"]}


def _worker(worker: Values, models: list[Values], membership: Membership) -> Any:
    number = worker["worker"]
    is_proxy = number >= _core.FIRST_PROXY
    keys = ("bytes_in", "bytes_out", "pushes", "pulls", "queued")
    return pb.WorkerStatus(
        worker=number - _core.FIRST_PROXY if is_proxy else number,
        is_proxy=is_proxy,
        host=membership.host_of(number),
        clock=_clock(number, models),
        alive=worker["connected"],
        lost_reason=worker["reason"],
        **{key: worker[key] for key in keys},
    )


def _carried(models: list[Values], membership: Membership) -> list[Any]:
    return [
        pb.WorkerStatus(
            worker=session.worker,
            host=session.host_name,
            clock=_clock(session.worker, models),
            alive=membership.is_alive(session),
            by_proxy=True,
        )
        for session in membership.carried()
    ]


def _clock(worker: int, models: list[Values]) -> int:
    return max((model["clocks"].get(worker, 0) for model in models), default=0)


def _model(model: Values, descriptions: dict[int, Any]) -> Any:
    description = descriptions.get(model["model"])
    keys = ("model", "name", "sealed", "clock", "clocks", "open_windows", "updates")
    return pb.ModelStatus(
        rule=description.rule if description else "",
        apply=description.apply if description else "",
        shards=[pb.ShardStatus(shard=s, bytes=b) for s, b in model["shard_bytes"].items()],
        **{key: model[key] for key in keys},
    )


def _rail(rail: Values, rates: Rates) -> Any:
    sent, received = rates.of(rail["interface"])
    # The other figures are those of collectives.
    keys = (
        "interface",
        "bytes_sent",
        "bytes_received",
        "frames_repeated",
        "lanes_lost",
        "lanes_back",
    )
    counters = {key: rail[key] for key in keys}
    return pb.RailStatus(sent_per_second=sent, received_per_second=received, **counters)
