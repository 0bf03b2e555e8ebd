"""The proxy of a host: a Unix socket at which workers attach, and nodes for each of their jobs."""

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.network import nic
from dmlcomm.network.proxy_socket import peer_of, read_line_after
from dmlcomm.proxy.node import Node, own_address
from dmlcomm.proxy.seats import FullError, OwnSeat, Peer, SeatOptions, Seats
from dmlcomm.ps import tree
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import is_loopback, parse_address
from dmlcomm.ps.worker.backoff import Backoff
from dmlcomm.ps.worker.control import Control

# How long a worker that attaches waits for the servers, and a connection for its request.
CONNECT_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 10.0

# A job without workers and proxies below is forgotten after this time.
IDLE_S = 60.0
# How often a proxy looks whether a job is idle or has lost a connection.
LOOK_INTERVAL_S = 0.1


@dataclass(frozen=True)
class ProxyOptions:
    """How a proxy is started.

    Attributes:
        socket: path at which workers attach. Its folder is made, for this user alone.
        shape: of trees, see `dmlcomm.ps.tree.parents`; the proxies of a job have one.
        rack: name of the switch that this host is at.
        users: numbers of users who may attach, beside this one and root.
        transport: "auto", "tcp" or "shm".
        insecure: permits jobs without a token, also where the proxy listens beyond loopback.
        metrics: "host:port" of the Prometheus endpoint, port 0 takes a free one; empty has none.
        prices: by which shape "auto" chooses; where it has no rate, what the NICs' drivers say.
        seats: how jobs share the NICs of the host.
    """

    socket: str
    shape: str = tree.AUTO
    rack: str = ""
    users: Collection[int] = ()
    transport: str = "auto"
    insecure: bool = False
    metrics: str = ""
    prices: tree.Prices = tree.UNKNOWN
    seats: SeatOptions = field(default_factory=SeatOptions)


class Job:
    """The nodes of one job: one per server. If one of them fails, all end, and are made anew.

    Args:
        on_failure: called when a node finds that it cannot go on, from any thread.

    Raises PsError, OSError.
    """

    def __init__(
        self,
        servers: list[str],
        token: str,
        options: ProxyOptions,
        seat: OwnSeat,
        on_failure: Callable[[], None],
    ) -> None:
        self.nodes: list[Node] = []
        self.users: set[int] = set()  # who have attached
        self.used = time.monotonic()
        self._seat = seat
        try:
            for index, address in enumerate(servers):
                root, health = _find_server(index, address, len(servers), token, options)
                join = _join_request(options)
                self.nodes.append(
                    Node(root, token, health, join, options.transport, seat.memory, on_failure)
                )
        except BaseException:
            self.close()
            raise

    def failure(self) -> str:
        """Why it cannot go on; empty while it can."""
        return next((failure for node in self.nodes if (failure := node.failure())), "")

    def is_idle(self) -> bool:
        """Whether nobody has been here for a while."""
        if time.monotonic() - self.used <= IDLE_S:
            return False
        if any(node.num_below() for node in self.nodes):
            self.used = time.monotonic()
        return time.monotonic() - self.used > IDLE_S

    def close(self) -> None:
        closing = [threading.Thread(target=node.close, daemon=True) for node in self.nodes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._seat.close()


def _find_server(
    index: int, address: str, num_servers: int, token: str, options: ProxyOptions
) -> tuple[Control, Any]:
    """The way to a server, and its health, if proxies carry its job."""
    root = Control(index, address, token, None)
    backoff = Backoff(CONNECT_TIMEOUT_S, f"server {index} ({address})")
    while True:
        try:
            health = root.call("Health", pb.HealthRequest())
            break
        except (errors.PsConnectionError, errors.PsTimeoutError) as error:
            backoff.wait(error)
    if (health.server, health.num_servers) != (index, num_servers):
        raise errors.PsRefusedError(
            f"{address} is server {health.server} of {health.num_servers}; expected server {index} "
            f"of {num_servers}: give the addresses of all servers of one job, in their order"
        )
    if health.replicas:
        raise errors.PsRefusedError(
            "proxies carry no job whose servers have replicas; set DMLCOMM_PROXY=none for this job"
        )
    if not (token or options.insecure or is_loopback(f"{own_address(root.address)}:0")):
        raise errors.PsRefusedError(
            "without a token everybody on the network could join this job by the proxy; give its "
            "servers and workers one (DMLCOMM_PS_TOKEN), or start the proxy with --insecure"
        )
    return root, health


def _join_request(options: ProxyOptions) -> Any:
    return pb.JoinTreeRequest(
        shape=options.shape,
        rack=options.rack,
        rate_bps=options.prices.rate_bps or nic.known_rate_bps(),
        shard_bytes=options.prices.shard_bytes,
        oversubscription=options.prices.oversubscription,
        hop_s=options.prices.hop_s,
    )


class Proxy:
    """Serves from construction until `close`; a context manager, too.

    Attributes:
        metrics: "host:port" of the Prometheus endpoint; empty: there is none.

    Raises ValueError for options that cannot work, OSError if it cannot listen.
    """

    def __init__(self, options: ProxyOptions) -> None:
        if options.shape not in (tree.AUTO, *tree.SHAPES):
            tree.parents(options.shape, ())  # raises
        _core.check_ps_transport(options.transport)
        options.prices.check()
        self.options = options
        self._users = {0, os.getuid(), *options.users}
        self._lock = threading.Lock()
        self._jobs: dict[tuple[str, ...], Job] = {}
        self._making: dict[tuple[str, ...], threading.Lock] = {}
        self._closed = threading.Event()
        self._may_have_failed = threading.Event()  # a job
        self._seats = Seats(options.seats)
        self._listener = _listen(options.socket, bool(options.users))
        self._endpoint: Any = None
        self.metrics = ""
        if options.metrics:
            try:
                self._start_metrics(parse_address(options.metrics))
            except BaseException:
                self.close()
                raise
        for target in (self._accept, self._look):
            threading.Thread(target=target, daemon=True).start()

    def _start_metrics(self, address: str) -> None:
        # These take a while to load.
        from dmlcomm.proxy.metrics import ProxyCollector
        from dmlcomm.ps.server.metrics import MetricsEndpoint

        host, _, port = address.rpartition(":")
        collector = ProxyCollector(self.status, self.priorities)
        self._endpoint = MetricsEndpoint(host.strip("[]"), int(port), collector)
        self.metrics = f"{host}:{self._endpoint.port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        with connection:
            connection.settimeout(REQUEST_TIMEOUT_S)
            try:
                line, descriptors, _, _ = socket.recv_fds(connection, 65536, 1)
                request = json.loads(read_line_after(connection, line))
                answer = self._answer(connection, request, descriptors)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                answer = {"error": f"this is no request: {error!r}"}
            except FullError as error:
                answer = {"error": str(error), "full": True}
            except (errors.PsError, OSError) as error:
                answer = {"error": str(error)}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            if answer is not None:
                with contextlib.suppress(OSError):  # it has gone
                    connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(
        self, connection: socket.socket, request: dict[str, Any], descriptors: list[int]
    ) -> dict[str, Any] | None:
        """None: it was answered, and is over."""
        process, user = peer_of(connection)
        if user not in self._users:
            allowed = ", ".join(map(str, sorted(self._users)))
            raise errors.PsRefusedError(
                f"user {user} may not attach; expected one of {allowed} (--user admits more)"
            )
        if request.get("beat"):
            return {}
        if request.get("status"):
            seen_by = None if user in (0, os.getuid()) else user
            return {"jobs": self.status(seen_by), "priorities": self._seats.status(seen_by)}
        if "seat" in request:
            self._seats.serve(connection, request, descriptors, (process, user))
            return None
        servers = [parse_address(address) for address in request["servers"]]
        priority = request.get("priority", _core.DEFAULT_PRIORITY)
        token = str(request["token"])
        return {"servers": self.attach(servers, token, (process, user), priority)}

    def attach(self, servers: list[str], token: str, peer: Peer, priority: int) -> list[str]:
        """Where this proxy stands in for the servers of the job. Raises PsError, OSError.

        The job has the priority of the worker that comes first.
        """
        key = (*servers, token)
        name = ",".join(servers)
        self._seats.check(name, priority, peer)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # other jobs do not wait for the servers of this one
            job = self._jobs.get(key)
            if job is None or job.failure():
                self._forget(key, job)
                seat = self._seats.take_own(name, priority, peer[1])
                job = Job(servers, token, self.options, seat, self._may_have_failed.set)
                get_logger().info("a job with servers %s has attached", ", ".join(servers))
            with self._lock:
                self._jobs[key] = job
                job.used = time.monotonic()
                job.users.add(peer[1])
            return [node.address for node in job.nodes]

    def _forget(self, key: tuple[str, ...], job: Job | None) -> None:
        with self._lock:
            is_ours = job is not None and self._jobs.get(key) is job
            if is_ours:
                self._jobs.pop(key)
        if job is not None and is_ours:
            # A node that waits for a parent does not hold up the next one.
            threading.Thread(target=job.close, daemon=True).start()

    def status(self, user: int | None = None) -> list[dict[str, Any]]:
        """By job, its nodes as plain data; of the jobs that `user` has attached to, or all."""
        with self._lock:
            jobs = [job for job in self._jobs.values() if user is None or user in job.users]
        return [{"nodes": [node.status() for node in job.nodes]} for job in jobs]

    def priorities(self) -> list[dict[str, Any]]:
        """By job with a seat, its priority and its parts of the NICs as plain data."""
        return self._seats.status()

    def _look(self) -> None:
        while not self._closed.is_set():
            self._may_have_failed.wait(LOOK_INTERVAL_S)
            self._may_have_failed.clear()
            self._forget_ended()

    def _forget_ended(self) -> None:
        with self._lock:
            jobs = list(self._jobs.items())
        for key, job in jobs:
            if job.failure() or job.is_idle():
                self._forget(key, job)

    def close(self) -> None:
        """Idempotent; workers notice at once."""
        self._closed.set()
        self._may_have_failed.set()
        self._listener.close()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.options.socket)
        with self._lock:
            jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.close()
        self._seats.close()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(path: str, for_others: bool) -> socket.socket:
    folder = Path(path).parent
    folder.mkdir(mode=0o755 if for_others else 0o700, parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_dead(path)
        listener.bind(path)
        os.chmod(path, 0o666 if for_others else 0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise OSError(f"the proxy cannot listen at {path}: {error}") from error
    return listener


def _remove_dead(path: str) -> None:
    """The socket of a proxy that was killed. Raises OSError if one is alive, or it is no socket."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError("there is a file of this name that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError("another proxy listens there; give this one another --socket")
