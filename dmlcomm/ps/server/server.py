"""A parameter server: the data path in the core, the control plane around it."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dmlcomm import _core
from dmlcomm.network import nic, seat
from dmlcomm.ps.protocol import RETURN_TIMEOUT_S, is_loopback, parse_address
from dmlcomm.ps.server.background import Checkpoints, RateReader
from dmlcomm.ps.server.checkpoint import CheckpointDirectory
from dmlcomm.ps.server.judge import Judge
from dmlcomm.ps.server.listen import listen
from dmlcomm.ps.server.membership import DEFAULT_REJOIN_TIMEOUT_S, MAX_WORKERS, Membership
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.peers import Peers
from dmlcomm.ps.server.refill import Refill
from dmlcomm.ps.server.rules import Rule, check_rule, load_rule
from dmlcomm.ps.server.service import Service
from dmlcomm.ps.server.settlement import Settlement
from dmlcomm.ps.server.status import ServerView, alive_workers
from dmlcomm.ps.tls import Tls

DEFAULT_CHECKPOINT_EVERY = 100

# How long calls that are being answered may take when the server closes.
GRACE_S = 0.5


@dataclass(frozen=True)
class ServerOptions:
    """How a server is started.

    Attributes:
        listen: "host:port" of the control plane; port 0 takes a free one.
        index: number of this server, 0 to num_servers - 1.
        num_servers: of the job; each holds an equal part of every model.
        addresses: of all servers in order; else the first worker tells them.
        workers: that training waits for; more may come later.
        replicas: 1 keeps a copy of every part on the next server.
        token: what workers have to show.
        transport: "auto", "tcp" or "shm".
        checkpoint: directory; None writes no checkpoints.
        checkpoint_every: clocks from one checkpoint to the next.
        allow_mixed_clocks: each server continues from its newest checkpoint, though others have it
            of another clock; otherwise from the newest clock that all have.
        rejoin_timeout_s: seconds that a restored server waits for workers of the checkpoint, from
            the first that comes; then the others go on without them.
        return_timeout_s: seconds that a worker whose proxy was lost may take to come another way;
            then the others go on without it.
        window_mb: memory for pushes of clocks that are not complete, in MB per model; None: a
            quarter of the machine's. Workers that are farther ahead wait. The pushes of 2 clocks
            are kept in any case, and of 64 at most.
        metrics_port: of the Prometheus endpoint; None has none.
        rule: for models with rule "python": a function, or "module:function".
        tls: of the control plane; None uses no TLS.
        insecure: permits to listen beyond loopback though nothing keeps strangers out.
    """

    listen: str = "127.0.0.1:0"
    index: int = 0
    num_servers: int = 1
    addresses: tuple[str, ...] = ()
    workers: int = 1
    replicas: int = 0
    token: str = ""
    transport: str = "auto"
    checkpoint: str | Path | None = None
    checkpoint_every: int = DEFAULT_CHECKPOINT_EVERY
    allow_mixed_clocks: bool = False
    rejoin_timeout_s: float = DEFAULT_REJOIN_TIMEOUT_S
    return_timeout_s: float = RETURN_TIMEOUT_S
    window_mb: float | None = None
    metrics_port: int | None = None
    rule: str | Rule | None = None
    tls: Tls | None = None
    insecure: bool = False

    def check(self) -> None:
        """Raises ValueError."""
        parse_address(self.listen)
        _expect(self.num_servers >= 1, f"{self.num_servers} servers", "at least 1")
        indexes = f"0 to {self.num_servers - 1}, as the job has {self.num_servers} servers"
        _expect(0 <= self.index < self.num_servers, f"server {self.index}", indexes)
        _expect(1 <= self.workers <= MAX_WORKERS, f"{self.workers} workers", f"1 to {MAX_WORKERS}")
        _expect(self.replicas in (0, 1), f"{self.replicas} replicas", "0 or 1")
        if self.replicas:
            _expect(self.num_servers > 1, "1 replica on 1 server", "2 servers or more")
            _expect(
                self.tls is None or self.tls.ca is not None,
                "1 replica with TLS, but without a CA",
                "a CA (--tls-ca), by which servers know each other when they call",
            )
        _expect(self.checkpoint_every >= 1, f"every {self.checkpoint_every} clocks", "at least 1")
        timeout = f"a rejoin timeout of {self.rejoin_timeout_s:g} s"
        _expect(self.rejoin_timeout_s > 0, timeout, "more than 0")
        timeout = f"a return timeout of {self.return_timeout_s:g} s"
        _expect(self.return_timeout_s > 0, timeout, "more than 0")
        window = f"windows of {self.window_mb} MB"
        _expect(self.window_mb is None or self.window_mb >= 1, window, "at least 1")
        self._check_admission()

    def _check_admission(self) -> None:
        """TLS alone keeps nobody out: the server must demand certificates."""
        demands_proof = bool(self.token) or (self.tls is not None and self.tls.ca is not None)
        if demands_proof or self.insecure or is_loopback(self.listen):
            return
        raise ValueError(
            f"a server at {self.listen} would serve everybody who reaches this port; give it a "
            f"token (--token-file, DMLCOMM_PS_TOKEN) or demand certificates (--tls-ca), listen on "
            f"127.0.0.1, or permit it with --insecure"
        )


def _expect(holds: bool, actual: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"{actual}: expected {expected}")


class Server:
    """A running server. It serves from its construction until `close`; a context manager, too.

    Args:
        options: see `ServerOptions`.

    Raises:
        ValueError: options cannot work.
        PsCheckpointError: a checkpoint cannot be used.
        OSError: the port is taken.

    Attributes:
        address: where it listens, with the real port.
        metrics_port: of the Prometheus endpoint, or None.

    Example:
        >>> with dmlcomm.ps.Server() as server, dmlcomm.ps.Client(server.address) as client:
        ...     client.init("w", np.zeros(3, np.float32))
    """

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.options = options = options or ServerOptions()
        options.check()
        rule = _rule(options.rule)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._closers: list[Callable[[], None]] = []
        try:
            self._start(options, rule)
        except BaseException:
            self.close()
            raise

    def _start(self, options: ServerOptions, rule: Rule | None) -> None:
        core = _core.PsServer(
            options.index,
            options.num_servers,
            options.workers,
            options.transport,
            int((options.window_mb or 0) * 1e6),
            settles=options.replicas > 0,
        )
        self._closers.append(core.close)
        view = ServerView(
            core, options.index, options.num_servers, options.workers, options.replicas
        )
        membership = Membership(
            options.workers,
            lambda: alive_workers(core.status()),
            options.rejoin_timeout_s,
            core.gone,
        )
        models = Models(core, options.index, membership, rule)
        checkpoints = None
        if options.checkpoint is not None:
            directory = CheckpointDirectory(options.checkpoint, options.index, options.num_servers)
            checkpoints = Checkpoints(
                *(core, directory, options.checkpoint_every, view, membership, models),
                allow_mixed_clocks=options.allow_mixed_clocks,
            )
            self._closers.append(checkpoints.close)
        self._closers.append(RateReader(core, view).close)
        self.metrics_port = self._start_metrics(options, lambda: view.status(membership, models))
        peers = Peers(options.token, options.tls, options.addresses)
        judge = Judge(core, peers)
        # Port 0, which others may have given, too, becomes another one below.
        own_name = f"server at {options.listen} (process {os.getpid()})"
        taken = seat.take(own_name, seat.priority_of(None))
        if taken is not None:
            self._closers.append(taken.close)
        settlement = None
        if options.replicas:
            settlement = Settlement(core, options.index, options.num_servers, judge)
            settlement.start()
            self._closers.append(settlement.close)
        service = Service(
            *(core, view, membership, models, nic.own_rails, checkpoints, judge, settlement),
            seat=taken.memory if taken else None,
            return_timeout_s=options.return_timeout_s,
        )
        if options.replicas:
            refill = Refill(
                *(core, options.index, options.num_servers, peers, membership, models),
                service.begin_anew,
            )
            self._closers.append(refill.close)
        self._closers.append(peers.close)
        self.address = self._listen(options, service)
        view.ready = True

    def _start_metrics(self, options: ServerOptions, status: Callable[[], object]) -> int | None:
        if options.metrics_port is None:
            return None
        from dmlcomm.ps.server.metrics import MetricsEndpoint, ServerCollector  # takes a while

        host = options.listen.rpartition(":")[0].strip("[]")
        endpoint = MetricsEndpoint(host, options.metrics_port, ServerCollector(status))
        self._closers.append(endpoint.close)
        return endpoint.port

    def _listen(self, options: ServerOptions, service: Service) -> str:
        server, address = listen(
            options.listen, options.index, options.token, options.tls, options.workers, service
        )
        self._closers.append(lambda: server.stop(GRACE_S).wait())
        self._closers.append(service.close)
        return address

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the server has closed; False if `timeout_s` seconds were over first."""
        return self._ended.wait(timeout_s)

    def close(self) -> None:
        """Stops serving. Idempotent; workers notice at once."""
        with self._lock:
            while self._closers:
                self._closers.pop()()
        self._ended.set()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rule(rule: str | Rule | None) -> Rule | None:
    if isinstance(rule, str):
        return load_rule(rule)
    if rule is not None:
        check_rule(rule, getattr(rule, "__name__", "?"))
    return rule
