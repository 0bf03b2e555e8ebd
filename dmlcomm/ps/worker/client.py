"""A worker's client: push, pull and clock."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.network import seat as seats
from dmlcomm.prio.ticket import ticket_or_same
from dmlcomm.ps.description import why_not_by_proxy
from dmlcomm.ps.protocol import parse_address, parse_servers
from dmlcomm.ps.tls import Tls
from dmlcomm.ps.worker import tensors
from dmlcomm.ps.worker.connections import ConnectionOptions, Connections
from dmlcomm.ps.worker.creation import Creation
from dmlcomm.ps.worker.model import ClientModel, make_model
from dmlcomm.ps.worker.operations import Operations, nothing, rate
from dmlcomm.ps.worker.redirect import Route
from dmlcomm.ps.worker.returns import Returns
from dmlcomm.ps.worker.tables import pull_rows, pull_tables
from dmlcomm.ps.worker.watch import Watch
from dmlcomm.rail import RailCounters


class Client:
    """One worker's connection to all parameter servers of a job.

    Weights and gradients are NumPy arrays or torch tensors: one, a list, or a dict such as a
    ``state_dict``. Every worker makes the same models. A worker's *clock* counts its calls of
    `clock`; a push belongs to the clock it is made in; `pull` says how far others may be behind.

    Any thread may call; operations are carried out in the order of the calls. Each raises, beside
    what its own description says:

    - PsModelError: `init` was not called for this model. ValueError or TypeError: tensors have
      another structure, shape or element type than the model. Nothing is sent then.
    - PsServerLostError: a server has died, has no replica, and did not come back in time.
    - PsTimeoutError: the operation did not end within `timeout_s`.
    - PsError: the client is closed, or the model's rule has failed on a server.

    Those that return a future raise the first kind at once; the future has the others.

    Args:
        servers: "host:port,host:port" or a list, server 0 first. Default: DMLCOMM_PS_SERVERS.
        token: of the job. Default: DMLCOMM_PS_TOKEN.
        worker: number of this worker, each once. Default: DMLCOMM_PS_WORKER, else RANK, else the
            servers choose.
        transport: "auto", "tcp" or "shm". Default: DMLCOMM_TRANSPORT.
        timeout_s: seconds that an operation may take.
        connect_timeout_s: seconds that the servers may take to be there.
        reconnect_timeout_s: seconds that a server that died may take to come back; 0: a lost
            connection is an error at once. A worker that loses its proxy looks for another way for
            15 s in any case.
        tls: of the control plane.
        proxy: "auto", "none", or the path of the proxy of this host. Default: DMLCOMM_PROXY.
        priority: of the job among those of this host, 0 (first) to 7, where a proxy shares its
            NICs. Default: DMLCOMM_JOB_PRIORITY, else 4.

    Raises:
        ValueError: an argument or a variable is not legal.
        PsConnectionError: a server does not answer. PsRefusedError: it does not let this worker in.

    Example:
        >>> with dmlcomm.ps.Client("127.0.0.1:7000") as client:
        ...     weights = client.init("w", np.zeros(1000, np.float32), rule="sgd", lr=0.1)
        ...     for _ in range(100):
        ...         weights = client.push_pull("w", gradient_of(weights))
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        worker: int | None = None,
        transport: str | None = None,
        timeout_s: float = 1800.0,
        connect_timeout_s: float = 60.0,
        reconnect_timeout_s: float = 60.0,
        tls: Tls | None = None,
        proxy: str | None = None,
        priority: int | None = None,
    ) -> None:
        config = _core.config()
        self._models: dict[str, ClientModel] = {}
        addresses = _addresses(servers, str(config["ps_servers"]))
        shown = str(config["ps_token"]) if token is None else token
        by = str(config["proxy"]) if proxy is None else proxy
        own_priority = seats.priority_of(priority)
        route = Route(by, addresses, shown, tls is not None, own_priority)
        self._seat = seats.take(",".join(addresses), own_priority, by)
        options = ConnectionOptions(
            route=route,
            token=shown,
            worker=int(config["ps_worker"]) if worker is None else worker,
            transport=transport or str(config["transport"]),
            connect_timeout_s=connect_timeout_s,
            reconnect_timeout_s=reconnect_timeout_s,
            tls=tls,
            seat=self._seat,
        )
        try:
            self._connections = Connections(options)
        except BaseException:
            self._leave_seat()
            raise
        self._operations = Operations(self._connections, self._recreate, timeout_s)
        self._creation = Creation(self._connections, self._operations, self._recreate)
        self._returns = Returns(self._connections, self._creation.lock)
        self._watch = Watch(route, self._connections, self._operations, self._recreate)

    def _leave_seat(self) -> None:
        if self._seat is not None:
            self._seat.close()

    @property
    def worker(self) -> int:
        """The number of this worker."""
        return self._connections.worker

    @property
    def num_servers(self) -> int:
        """How many servers the job has, with those that are lost."""
        return self._connections.num_servers

    @property
    def num_workers(self) -> int:
        """How many the servers wait for before training begins; more may take part."""
        return self._connections.num_workers

    @property
    def lost_servers(self) -> list[int]:
        """Servers that this worker has no connection to."""
        return list(self._core.lost())

    @property
    def by_proxy(self) -> bool:
        """Whether this worker goes by the proxy of its host at the moment."""
        return self._connections.by_proxy

    @property
    def way_since(self) -> float:
        """When this client came to go as it does, by a proxy or directly, by `time.monotonic`."""
        return self._connections.way_since

    def rails(self) -> list[list[RailCounters]]:
        """By server, the counters of each NIC of this worker; none for a server that is lost.

        Example:
            >>> sum(rail.bytes_sent for rails in client.rails() for rail in rails)
            8000960
        """
        return [[RailCounters(**rail) for rail in rails] for rails in self._core.rails()]

    def set_timeout(self, timeout_s: float) -> None:
        """Replaces `timeout_s`, in seconds, for operations that start from now on."""
        self._operations.timeout_s = timeout_s

    def init(
        self,
        model: str,
        weights: Any,
        *,
        rule: str = "assign",
        apply: str = "clock",
        reduce: str = "mean",
        wire: str = "",
        tables: bool = False,
        **options: float,
    ) -> Any:
        """Makes the model on the servers, and returns its valid weights.

        One worker's weights become the first values; which one's, the servers choose. All get the
        same, also in place. A worker that comes later gets the trained ones.

        Args:
            model: its name. All workers describe it alike.
            weights: tensors of any shapes; they are written. Elements: integers of 8 to 64 bits,
                f16, bf16, f32, f64; torch's optimizers as rules take f32 and f64.
            rule: "assign" (weights become the reduced pushes), "add", "sgd", "adam", "adamw",
                "adagrad", or "python", for what the servers were given as --rule.
            apply: "clock": the pushes of one clock of all workers are one update. "push": each push
                is one.
            reduce: "mean" or "sum" of the pushes of a clock.
            wire: "bf16" or "f16": how f32 travels. Default: as it is.
            tables: the tensors are matrices whose rows are pushed and pulled singly (`push_rows`,
                `pull_rows`); other pushes and pulls of the model are errors.
            options: of the rule, as lr=0.1.

        Returns:
            The tensors of `weights`, in the same structure.

        Raises:
            PsModelError: the servers have another model by this name; the text shows both. Or it
                has tables or apply="push", and `proxy` is a path: no proxy carries it.
            ValueError: there are no tensors, or the rule does not have an option.

        Example:
            >>> client.init("net", net.state_dict(), rule="adamw", lr=1e-3, weight_decay=0.01)
        """
        made = make_model(
            model,
            weights,
            wire=wire,
            tables=tables,
            options=options,
            rule=rule,
            apply=apply,
            reduce=reduce,
            num_servers=self.num_servers,
            replicas=self._connections.replicas,
        )
        if why := why_not_by_proxy(made.description):
            self._connections.leave_proxy(self._recreate, why)
        known = self._models.get(model)
        if known is None or known.description != made.description:
            self._creation.create(made, weights, self._models)
        if tables:
            return pull_tables(self._operations, made, weights)
        return self.pull(model, None, out=weights)

    def has_model(self, model: str) -> bool:
        """Whether this client has made `model` by `init`."""
        return model in self._models

    def push(
        self, model: str, gradients: Any, *, lr: float | None = None, ticket: int | None = None
    ) -> None:
        """Sends gradients, or other input of the model's rule; returns when they are safe.

        That is when all servers that hold a copy have them. Raises: see `Client`.

        Args:
            model: its name.
            gradients: tensors of the structure, shapes and element types of the model.
            lr: learning rate of this push. Default: the rule's.
            ticket: how soon it is needed, see `dmlcomm.ticket`. Default: that of the block around
                the call.
        """
        with ticket_or_same(ticket):
            self._push(self._operations.run, model, gradients, lr)

    def push_async(
        self, model: str, gradients: Any, *, lr: float | None = None, ticket: int | None = None
    ) -> "Future[None]":
        """As `push` of `gradients` to `model` with `lr` and `ticket`, later.

        Returns:
            A future of None. The gradients must not change until it is done.
        """
        with ticket_or_same(ticket):
            future: Future[None] = self._push(self._operations.run_later, model, gradients, lr)
        return future

    def pull(
        self,
        model: str,
        staleness: int | None = 0,
        *,
        out: Any = None,
        ticket: int | None = None,
    ) -> Any:
        """The weights. Raises: see `Client`.

        Args:
            model: its name.
            staleness: in clocks. With 0, all workers' pushes of the clocks before this worker's
                are in them; with s, of those more than s clocks before. It waits for slower workers
                until that holds. None: the present weights, at once; of a model with
                ``apply="push"``, pushes that this worker calls later may be in them, too.
            out: tensors to write to, as the model's. Default: new ones, of the library and device
                that `init` was given.
            ticket: as for `push`; of the answer, too.

        Returns:
            The tensors, in the structure of the model.

        Raises:
            ValueError: the staleness is negative, or `out` cannot be written.

        Example:
            >>> weights = client.pull("net", staleness=2)
        """
        with ticket_or_same(ticket):
            return self._pull(self._operations.run, model, staleness, out)

    def pull_async(
        self,
        model: str,
        staleness: int | None = 0,
        *,
        out: Any = None,
        ticket: int | None = None,
    ) -> "Future[Any]":
        """As `pull` of `model` with `staleness` and `ticket` to `out`, later.

        Returns:
            A future of the tensors, which are complete when it is done.
        """
        with ticket_or_same(ticket):
            future: Future[Any] = self._pull(self._operations.run_later, model, staleness, out)
        return future

    def push_pull(
        self,
        model: str,
        gradients: Any,
        staleness: int | None = 0,
        *,
        lr: float | None = None,
        out: Any = None,
        ticket: int | None = None,
    ) -> Any:
        """`push`, `clock` of this model and `pull` in one round trip.

        Args:
            model: its name.
            gradients: as for `push`.
            staleness: as for `pull`.
            lr: as for `push`.
            out: as for `pull`.
            ticket: as for `pull`.

        Returns:
            The weights, as `pull`.

        Raises:
            ValueError: see `pull`. Others: see `Client`.
        """
        with ticket_or_same(ticket):
            return self._push_pull(self._operations.run, model, gradients, staleness, lr, out)

    def push_pull_async(
        self,
        model: str,
        gradients: Any,
        staleness: int | None = 0,
        *,
        lr: float | None = None,
        out: Any = None,
        ticket: int | None = None,
    ) -> "Future[Any]":
        """As `push_pull` of `gradients` to `model` with `staleness`, `lr` and `ticket`, later.

        Returns:
            A future of the weights. Gradients and `out` must not be the same memory.
        """
        later = self._operations.run_later
        with ticket_or_same(ticket):
            future: Future[Any] = self._push_pull(later, model, gradients, staleness, lr, out)
        return future

    def push_rows(
        self, model: str, indices: Any, values: Any, *, table: int = 0, lr: float | None = None
    ) -> None:
        """Sends gradients of some rows of a table; returns when they are safe, as `push`.

        Args:
            model: its name; it was made with tables=True.
            indices: [n] integers, the numbers of the rows; one that comes twice counts twice.
            values: [n, row elements] of the table's element type, one row for each.
            table: which one, where the model has several.
            lr: as for `push`.

        Raises:
            ValueError: there is no such table, or shapes or element types do not fit. Others: see
                `Client`.

        Example:
            >>> client.push_rows("embedding", [3, 7], np.ones((2, 64), np.float32))
        """
        made, what = self._model(model), f'push of rows to model "{model}"'
        made.expect_table(table, f"worker {self.worker}: {what}")
        rows = tensors.indices_of(indices)
        memory = made.row_memory(table, rows, values)
        self._operations.run(
            what,
            lambda core, _: core.start_push_rows(
                made.number, table, rows.address, rows.num_elements, memory.address, rate(lr)
            ),
            nothing,
            (rows, memory),
        )

    def pull_rows(
        self, model: str, indices: Any, staleness: int | None = 0, *, table: int = 0
    ) -> Any:
        """Some rows of a table.

        Args:
            model: its name; it was made with tables=True.
            indices: [n] integers, the numbers of the rows.
            staleness: as for `pull`.
            table: which one, where the model has several.

        Returns:
            [n, row elements], in the order of `indices`.

        Raises:
            ValueError: there is no such table, or a number is no row of it. Others: see `Client`.
        """
        made = self._model(model)
        made.expect_table(table, f'worker {self.worker}: pull of rows of model "{model}"')
        rows = tensors.indices_of(indices)
        row_elements = made.layout.tensors[table].shape[1]
        out = tensors.empty(made.like[table], (rows.num_elements, row_elements))
        memory, finish = tensors.writable(out)
        bound = _check_staleness(staleness)
        return pull_rows(self._operations, made, table, rows, memory.address, bound, finish)

    def clock(self) -> None:
        """Closes this worker's clock of all models: its pushes there are complete.

        Returns at once.
        """
        self._core.clock()

    def clock_of(self, model: str) -> int:
        """How far this worker is with `model`: clocks closed, with those before it came.

        Those that the servers have closed without it, as it was stopped or cut off, count, too.

        Raises PsModelError: `init` was not called for it.
        """
        return int(self._core.clock_of(self._model(model).number))

    def barrier(self) -> None:
        """Waits until every live worker has called it.

        Raises:
            PsTimeoutError: some have not within `timeout_s`; the text names them.
            PsServerLostError: server 0 has died, has no replica, and did not come back.
        """
        self._connections.barrier(self._operations.timeout_s, self._recreate)

    def close(self, *, wait: bool = True) -> None:
        """Leaves: the others do not wait for this worker any more. Idempotent.

        Args:
            wait: first for what was started; else that ends with an error.
        """
        if not wait:
            self._returns.close()
            self._connections.close()
        self._operations.close()
        self._returns.close()
        if not self._connections.closed and not self._connections.flush():
            get_logger().warning(
                "worker %d leaves before the others have closed its last clock; if its proxy is "
                "lost until then, so are its pushes of that clock",
                self.worker,
            )
        self._connections.stop_moving()
        self._watch.close()
        self._connections.close()
        self._leave_seat()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, a pull may wait for pushes that never come.
        self.close(wait=kind is None)

    def _push(self, run: Any, model: str, gradients: Any, lr: float | None) -> Any:
        made, what = self._model(model), f'push to model "{model}"'
        made.expect_dense(what)
        memory, owner = made.readable(gradients)
        return run(
            what,
            lambda core, wait: core.start_push(made.number, memory, rate(lr), wait),
            nothing,
            owner,
        )

    def _pull(self, run: Any, model: str, staleness: int | None, out: Any) -> Any:
        made, what = self._model(model), f'pull of model "{model}"'
        made.expect_dense(what)
        memory, finish = made.writable(out)
        bound = _check_staleness(staleness)
        return run(
            what,
            lambda core, wait: core.start_pull(made.number, memory, bound, wait),
            finish,
        )

    def _push_pull(
        self,
        run: Any,
        model: str,
        gradients: Any,
        staleness: int | None,
        lr: float | None,
        out: Any,
    ) -> Any:
        made, what = self._model(model), f'push_pull of model "{model}"'
        made.expect_dense(what)
        pushed, owner = made.readable(gradients)
        pulled, finish = made.writable(out)
        bound = _check_staleness(staleness)
        return run(
            what,
            lambda core, wait: core.start_push_pull(
                made.number, pushed, pulled, bound, rate(lr), wait
            ),
            finish,
            owner,
        )

    def _recreate(self, server: int) -> None:
        """Makes all models known to a server that was started again."""
        for made in list(self._models.values()):
            self._creation.recreate(server, made)
        self._creation.recreate_unfinished(server)

    @property
    def _core(self) -> _core.PsClient:
        core = self._connections.core
        assert core is not None
        return core

    def _model(self, name: str) -> ClientModel:
        made = self._models.get(name)
        if made is None:
            known = ", ".join(f'"{model}"' for model in self._models) or "none"
            raise errors.PsModelError(
                f'worker {self.worker} has no model "{name}" (it has {known}); call init first'
            )
        return made


def _addresses(servers: str | Sequence[str] | None, default: str) -> list[str]:
    if servers is None:
        if not default:
            raise ValueError(
                "no parameter servers: give Client(servers=...), set DMLCOMM_PS_SERVERS to "
                "host:port,host:port, or start with `dmlcomm run --servers N -- COMMAND`"
            )
        servers = default
    if isinstance(servers, str):
        return parse_servers(servers)
    return [parse_address(address) for address in servers]


def _check_staleness(staleness: int | None) -> int | None:
    if staleness is not None and (isinstance(staleness, bool) or staleness < 0):
        raise ValueError(f"staleness {staleness}: expected 0 or more clocks, or None")
    return staleness
