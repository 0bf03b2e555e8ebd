"""The core without torch: configuration, probes, names, the parameter server."""

from collections.abc import Callable, Sequence
from typing import Any, Final

VERSION: str  # of dmlcomm
TORCH_VERSION: str  # major.minor, for which the modules were built

class ProbeResult:
    """Whether something works on this machine."""

    works: Final[bool]
    detail: Final[str]  # How, or the reason why not

class CongestionControls:
    system_default: Final[str]
    usable: Final[list[str]]
    refused: Final[list[str]]

class Topology:
    """Hosts, their network, and what it costs (seconds)."""

    alpha_s: float
    overhead_s: float
    contention: float
    def __init__(
        self,
        num_hosts: int,
        ranks_per_host: int,
        grid: list[int],
        rates_bps: list[int],
    ) -> None: ...
    def on_shared_cores(self, ranks_per_core: float) -> Topology: ...
    ranks_per_core: Final[float]
    memory_bps: Final[float]
    single_copy: Final[bool]

class Task:
    """One of the tasks that schedules are made of."""

    kind: Final[str]
    rank: Final[int]
    receiver: Final[int]
    seconds: Final[float]
    bytes: Final[float]
    hops: Final[list[tuple[int, int, int | None]]]
    after: Final[list[int]]

class TaskList:
    """The schedules of all ranks."""

    algorithm: Final[str]
    tasks: Final[list[Task]]

def list_tasks(
    topology: Topology,
    job: Topology,
    op: str,
    num_bytes: int,
    element_bytes: int,
    algorithm: str,
) -> TaskList: ...

class Price:
    """The price of one algorithm; None where it was not counted."""

    name: Final[str]
    is_schedule: Final[bool]
    seconds: Final[float]
    priced_by: Final[str]
    estimate_s: Final[float]
    messages: Final[int | None]
    rounds: Final[int | None]
    rail_bytes: Final[list[float] | None]

class Comparison:
    """The prices of the algorithms of an operation; `chosen` and `fastest` are indexes."""

    prices: Final[list[Price]]
    chosen: Final[int]
    fastest: Final[int]

def compare(
    topology: Topology, job: Topology, op: str, num_bytes: int, element_bytes: int
) -> Comparison: ...
def verify(topology: Topology, op: str) -> None: ...
def ranks_per_shared_core(ranks: list[tuple[str, int]]) -> float: ...
def check_plan(text: str) -> None: ...
def max_min_rates(
    paths: Sequence[Sequence[int]],
    capacities: Sequence[float],
    weights: Sequence[float],
    priorities: Sequence[int],
) -> list[float]: ...

class SimOutcome:
    """When tasks began and ended, and what links carried."""

    makespan_s: Final[float]
    starts_s: Final[list[float]]
    ends_s: Final[list[float]]
    link_bytes: Final[list[float]]

class Simulation:
    """Flows and computations, in bits/s and seconds."""

    num_tasks: Final[int]
    def __init__(self, capacities: Sequence[float], latencies_s: Sequence[float]) -> None: ...
    def add_flow(
        self,
        path: Sequence[int],
        num_bytes: float,
        start_s: float,
        after: Sequence[int],
        weight: float,
        priority: int,
        lane: int,
    ) -> int: ...
    def add_compute(
        self, seconds: float, start_s: float, after: Sequence[int], lane: int
    ) -> int: ...
    def change_capacity(self, link: int, time_s: float, capacity: float, dark_s: float) -> None: ...
    def change_path(self, path: Sequence[int], time_s: float, other: Sequence[int]) -> None: ...
    def run(self, progress: Callable[[int], None] | None, resolution_s: float) -> SimOutcome: ...

DEFAULT_TICKET: Final[int]

def current_ticket() -> int: ...
def set_ticket(ticket: int) -> None: ...
def isa_name() -> str: ...
def host_id() -> str: ...
def inspector_folder() -> str: ...
def host_name() -> str: ...
def config() -> dict[str, str | int | float | bool]: ...
def config_defaults() -> dict[str, str | int | float | bool]: ...
def algorithms() -> dict[str, list[str]]: ...
def check_algorithm(text: str) -> None: ...
def without_parameter_servers(text: str) -> str: ...
def probe_shared_memory() -> ProbeResult: ...
def probe_single_copy() -> ProbeResult: ...
def probe_tcp() -> ProbeResult: ...
def probe_ucx() -> ProbeResult: ...
def probe_congestion_controls() -> CongestionControls: ...
def address_of(array: Any) -> int:
    """Where a NumPy array's elements are."""

class PsMemory:
    """The memory of operations: by space of the model, (address, elements) of its tensors."""

    def __init__(self, addresses: list[list[tuple[int, int]]]) -> None: ...
    def addresses(self) -> list[list[tuple[int, int]]]: ...

class PsArrays:
    """The NumPy arrays that a model consists of: names of element types, shapes, spaces."""

    def __init__(self, arrays: list[tuple[str, tuple[int, ...], int]], num_spaces: int) -> None: ...
    def memory_of(self, arrays: list[Any], writable: bool) -> PsMemory | None:
        """None unless all are arrays of these types and shapes that can be used in place."""

class PsSpace:
    """A run of elements of one type in a model: its dense tensors, or one sparse table.

    `row_elements`: per row of a table, 0 for dense. `wire`: the type that messages carry, `dtype`
    if empty; servers keep 16-bit floats as f32.
    """

    def __init__(self, dtype: str, count: int, row_elements: int = 0, wire: str = "") -> None: ...

class PsModelSpec:
    """The description of a model for the parameter server. ValueError if it is not legal."""

    def __init__(
        self,
        name: str,
        spaces: list[PsSpace],
        num_servers: int,
        replicas: int = 0,
        apply: str = "clock",
        reduce: str = "mean",
        rule: str = "assign",
        options: dict[str, float] = ...,
    ) -> None: ...

class PsSnapshot:
    """A model at one clock, for a checkpoint."""

    model: Final[int]
    clock: Final[int]
    workers: Final[list[int]]  # Whose clocks counted then
    def shards(self) -> list[dict[str, Any]]:
        """Each {"shard", "arrays": uint8 arrays without a copy, "steps": updates per piece,
        "pushes": uint64 rows of piece, worker, incarnation, sequence number}."""

# Number of the first proxy, among those of workers.
FIRST_PROXY: Final[int]

def check_ps_transport(transport: str) -> None:
    """Raises ValueError unless servers, clients and proxies can use it."""

class ProxyUplink:
    """A proxy's connection to its parent, for the models of one server."""

    def __init__(self, transport: str = "auto") -> None: ...
    def serve(
        self, server: int, num_servers: int, num_workers: int, transport: str = "auto"
    ) -> PsServer:
        """The server that those below see."""
    def connect(
        self,
        place: int,
        server: int,
        rails: list[tuple[str, str]],
        first_rail: int,
        set: Callable[[str, bytes], None],  # noqa: A002
        get: Callable[[str], str | bytes],
        timeout_s: float,
        seat: JobSeat | None = None,
    ) -> None:
        """Once. place: of this proxy in the tree; server: the number of the one at the root."""
    def check(self) -> None:
        """ConnectionError once the parent is lost."""
    @property
    def bytes_sent(self) -> int:
        """Of elements."""
    @property
    def bytes_received(self) -> int: ...
    def close(self) -> None: ...

class PsServer:
    def __init__(
        self,
        server: int,
        num_servers: int,
        num_workers: int,
        transport: str = "auto",
        window_bytes: int = 0,
        settles: bool = False,
    ) -> None:
        """settles: with replicas, workers that have gone count until `drop_settled`."""
    def join(
        self,
        worker: int,
        rails: list[tuple[str, str]],
        first_rail: int,
        set: Callable[[str, bytes], None],  # noqa: A002
        get: Callable[[str], str | bytes],
        timeout_s: float,
        tree: int = 0,
        seat: JobSeat | None = None,
        incarnation: int = 0,
    ) -> None:
        """Meets the worker and serves it from then on; a session that it still has ends first.

        rails: (interface, address); the i-th meets the worker's i-th. first_rail: the one to use
        while it works; -1 stripes over all. tree: of a proxy; refused once `end_tree` has ended it.
        incarnation: refused while another one of the worker is not settled.
        """
    def create_model(
        self,
        model: int,
        spec: PsModelSpec,
        python_rule: Callable[..., None] | None = None,
        base: int = 0,
    ) -> None:
        """The same spec again does nothing; another one is a ValueError that shows both.

        base: of a proxy's model: weights that come from above contain all clocks before it.
        """
    def seal(self, model: int) -> None:
        """The first values are there: pulls are answered from now on."""
    def is_sealed(self, model: int) -> bool: ...
    def wait_sealed(self, model: int, timeout_s: float) -> bool: ...
    def status(self) -> dict[str, Any]:
        """{"workers": [...], "models": [...], "rails": [...]}."""
    def lost_servers(self) -> list[int]:
        """Servers that are lost, as this server or another one has found."""
    def lose(self, server: int, life: int) -> None:
        """This server has found that another one is lost: no worker uses that one any more.

        life: of it, that has ended; nothing if it has another one.
        """
    def lives(self) -> list[int]:
        """By server: even while it is used, odd once it is lost; see csrc/ps/lives.h."""
    def learn(self, lives: list[int]) -> None:
        """What another server has told; the larger number is the newer."""
    def give_way(self, known: list[int], told: list[int]) -> bool:
        """To a server with these lives: the two have each found the other lost, and only this one
        was. False, and nothing, if this server has heard anything since its lives were `known`.
        """
    def come_back(self, lost: int) -> None:
        """This server was lost, and is used again: it forgets all, and serves once filled().

        lost: its present life.
        """
    def is_filling(self) -> bool: ...
    def begun(self) -> list[int]:
        """Workers that send here what they begin from now on."""
    def copy(self, model: int, shard: int, first: int, limit: int) -> tuple[bytes, int]:
        """Pieces from `first` on, until there are `limit` bytes; and the number of the next one."""
    def take_copy(self, model: int, shard: int, bytes: bytes) -> None:  # noqa: A002
        """Puts the pieces of another server in the place of those that are here."""
    def end_fill(self, model: int, clocks: dict[int, int]) -> None:
        """All pieces of the model are here. clocks: of the workers that count."""
    def filled(self) -> None:
        """All models are here: workers are served from now on."""
    def unsettled(self) -> dict[int, tuple[int, int, bool]]:
        """Workers that have gone, and other servers may have more of.

        By worker its incarnation, the life of this server in which it was here, and whether it has
        left in good order.
        """
    def wait_unsettled(self, timeout_s: float) -> dict[int, tuple[int, int, bool]]:
        """The same once there is one, or after the timeout."""
    def end_worker(self, worker: int, incarnation: int, reason: str) -> bool:
        """Its connection ends, and nothing comes from it any more. Whether it is unsettled then.

        reason: empty if it has left in good order.
        """
    def known_pushes(self, model: int, shard: int, worker: int, first: int, limit: int) -> bytes:
        """The numbers of pushes of the worker that are here, to pieces from `first` on."""
    def copy_pushes(
        self, model: int, shard: int, worker: int, known: bytes, first: int, limit: int
    ) -> tuple[bytes, int]:
        """Pushes that may be on one server alone, to pieces from `first` on, as `copy` has pieces.

        known: of another server, which has these; nothing comes beyond the pieces that it has.
        """
    def take_pushes(
        self,
        model: int,
        shard: int,
        worker: int,
        bytes: bytes,  # noqa: A002
    ) -> None:
        """Adds those that are not here."""
    def drop_settled(self, worker: int, incarnation: int) -> None:
        """Others go on without the worker."""
    def settle(self, worker: int, incarnation: int) -> None:
        """Another incarnation of the worker may come."""
    def refused(self, worker: int, incarnation: int) -> tuple[str, bool]:
        """Why it may not join, or an empty text; and whether it may later."""
    def settled(self) -> set[tuple[int, int]]:
        """Workers and their incarnations that are settled, and are refused from then on."""
    def take_settled(self, workers: set[tuple[int, int]]) -> None:
        """What another server has `settled`."""
    def set_checkpoint_every(self, clocks: int) -> None:
        """Of models that are created later; 0: never."""
    def stop_clocks(self) -> None:
        """Before close(): no clock but the current one ends, and both ends have a snapshot."""
    def next_snapshot(self, timeout_s: float) -> PsSnapshot | None: ...
    def restore(
        self,
        model: int,
        spec: PsModelSpec,
        python_rule: Callable[..., None] | None,
        clock: int,
        workers: list[int],
        shards: list[dict[str, Any]],
    ) -> None: ...
    def start_up(self, expected: list[int]) -> None:
        """Of a proxy: all workers of the job have come, these of them below this proxy."""
    def fetch_values(self, model: int) -> None:
        """Of a proxy: asks for the weights of a model that has first values."""
    def show_own_from(self, model: int, clock: int) -> None:
        """Of a proxy: pulls that may be stale also show what is on its way up, by pieces that
        contain all clocks before `clock`. Of several calls the largest counts."""
    def carry(self, worker: int) -> None:
        """The worker comes by a proxy from now on: its own connection ends, and it counts on."""
    def hold(self, model: int, worker: int) -> tuple[int, bool]:
        """The worker counts from now on: where it is, or begins, and whether it begins."""
    def version(self, model: int) -> int:
        """All pieces contain all clocks before it."""
    def reached(self, model: int) -> int:
        """No piece contains this clock or a later one."""
    def has_lost_proxy(self) -> bool:
        """Whether the connection of a proxy has ended."""
    def end_tree(self) -> int:
        """Ends the connections of all proxies; what has come by them and is in no version is
        forgotten. The number of the next tree."""
    def gone(self) -> list[int]:
        """Workers that have left or were lost."""
    def give_up(self, worker: int) -> None:
        """The clocks of a worker that has no connection count no more until it comes."""
    def close(self) -> None: ...

class PsOperation:
    def wait(self, timeout_s: float | None = None) -> bool:
        """True when done, False when the time is over.

        ConnectionError: lost() names the servers without which it cannot end; once they are
        connected again it goes on.
        """
    def done(self) -> bool: ...
    def lost(self) -> list[int]: ...
    def retry(self) -> None:
        """Sends first values to servers that have been connected again: they alone wait for it."""
    def abandon(self) -> None:
        """Nobody waits for it any more: it is not repeated, and holds up no clock."""

class PsClient:
    """A worker's side. Operations reach servers in the order in which they were started."""

    def __init__(
        self, worker: int, num_servers: int, first_sequence: int, transport: str = "auto"
    ) -> None:
        """first_sequence: larger than any number of a push of this worker before."""
    def connect(
        self,
        server: int,
        rails: list[tuple[str, str]],
        first_rail: int,
        set: Callable[[str, bytes], None],  # noqa: A002
        get: Callable[[str], str | bytes],
        timeout_s: float,
        by_proxy: bool = False,
        seat: JobSeat | None = None,
        life: int = 0,
    ) -> None:
        """by_proxy: pushes are kept until a version at the server contains them, and repeated.

        life: of the server, see `PsServer.lives`.
        """
    def add_model(self, model: int, spec: PsModelSpec, clock: int = 0) -> None: ...
    def clock_of(self, model: int) -> int: ...
    def skip_to(self, model: int, server: int, clock: int) -> None:
        """Before connect() to a server that has gone on without this worker, to this clock."""
    def disconnect(self, server: int, reason: str) -> None:
        """Ends the connection to a server that has forgotten this worker."""
    def lost(self) -> list[int]:
        """Servers without a connection that works."""
    def confirm_lost(self, server: int, life: int) -> None:
        """With replicas: the other servers say that this life of it has ended for all workers."""
    def lost_for_all(self) -> list[int]: ...
    def learn(self, lives: list[int]) -> None:
        """What a server has told. One that is lost is used no more."""
    def heard(self) -> list[int]:
        """The newest lives of servers that this worker has heard."""
    def lives(self) -> list[int]:
        """Those to which operations go: of a server that has come back, not before connect()."""
    def returned(self) -> list[int]:
        """Servers that have come back, and wait for connect()."""
    def idle(self) -> bool:
        """Whether nothing has to be repeated, whatever connection is lost."""
    def flush(self, timeout_s: float) -> bool:
        """Waits until no push of a closed clock would be lost with a proxy."""
    # The memory must live until the operation is done. wait: the caller waits for the operation at
    # once.
    def start_set(self, model: int, memory: PsMemory) -> PsOperation: ...
    def start_push(
        self, model: int, memory: PsMemory, lr: float = ..., wait: bool = False
    ) -> PsOperation: ...
    def start_pull(
        self, model: int, memory: PsMemory, staleness: int | None, wait: bool = False
    ) -> PsOperation: ...
    def start_push_pull(
        self,
        model: int,
        up: PsMemory,
        down: PsMemory,
        staleness: int | None,
        lr: float = ...,
        wait: bool = False,
    ) -> PsOperation:
        """A push, the end of this worker's clock of the model, and a pull."""
    def start_push_rows(
        self, model: int, space: int, numbers: int, num_rows: int, values: int, lr: float = ...
    ) -> PsOperation: ...
    def start_pull_rows(
        self,
        model: int,
        space: int,
        numbers: int,
        num_rows: int,
        values: int,
        staleness: int | None,
    ) -> PsOperation: ...
    def clock(self) -> None:
        """Ends this worker's clock of all models."""
    def rails(self) -> list[list[dict[str, Any]]]: ...
    def close(self) -> None: ...

# --- jobs that share the NICs of a host ---

MAX_PRIORITY: Final[int]
DEFAULT_PRIORITY: Final[int]

class JobSeat:
    """The memory in which this process and the arbiter of its host meet."""

    reason: Final[str]  # Why the job has lost its place; empty while it has it
    def __init__(self) -> None: ...
    def fileno(self) -> int: ...

class Arbiter:
    """Shares the NICs of this host among jobs."""

    def __init__(
        self, is_strict: bool = True, floor: float = ..., num_classes: int = 0
    ) -> None: ...
    def add(self, job: str, priority: int, fd: int) -> int:
        """The number of the seat, whose memory the descriptor is."""
    def remove(self, seat: int) -> None: ...
    def drop(self, job: str, priority: int, reason: str) -> None: ...
    def status(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...

class Arbitration:
    """What an Arbiter does in each round, for simulations with their own time."""

    def __init__(self, is_strict: bool = True, floor: float = ...) -> None: ...
    def add(self, job: str, priority: int, seat: JobSeat) -> int: ...
    def round(self, now_ns: int) -> None: ...

class NicCredit:
    """One direction of a seat's NIC, as those who send or read see it."""

    def __init__(self, seat: JobSeat, interface: str, arrives: bool = False) -> None: ...
    def is_limited(self) -> bool: ...
    def has_credit(self, now_ns: int) -> bool: ...
    def take(self, bytes: int) -> None: ...  # noqa: A002
    def count(self, bytes: int) -> None: ...  # noqa: A002
    def begin(self, num_bytes: int) -> None: ...
    def end(self, num_bytes: int) -> None: ...
    def measured(self, bits_per_second: float) -> None: ...

def dscp_of_class(priority: int, num_classes: int) -> int:
    """Of packets of jobs with this priority, where the fabric has so many classes."""

def nic_shares(priorities: list[int], is_strict: bool = True, floor: float = ...) -> list[float]:
    """By job that sends over a NIC, the part that the arbiter gives it."""

QUANTIZED_BLOCK: Final[int]

def quantized_bytes(count: int) -> int: ...
def quantize(
    dst: int,
    error: int,
    values: int,
    factor: float,
    sources: Sequence[int],
    count: int,
    float_codes: bool,
) -> None: ...
def dequantize(dst: int, src: int, count: int, float_codes: bool) -> None: ...
