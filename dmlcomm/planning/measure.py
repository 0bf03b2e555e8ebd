"""The running cluster: what its rails show, and latency and rates between neighbours.

The rails show what all ranks send at once (`rails`). The plan counts with messages that rank 0 and
its neighbours send to and fro.

The model is that of the planner: a message of b bytes takes alpha + b beta. Small messages give
alpha; beta is the slope of a least-squares line over large ones. Each size counts with the median
of its repetitions, so that single delays do not matter. Where ranks of several hosts share cores,
a small all_reduce gives the latency; see `shared_cores`.
"""

import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from dmlcomm import _core, _shell
from dmlcomm.bml import grid
from dmlcomm.network import nic
from dmlcomm.network.agreement import agree
from dmlcomm.network.discovery import NetworkMap
from dmlcomm.planning import rails
from dmlcomm.planning.network import ASSUMED_BPS, MOST_MTU, PlanError, PlannedNetwork
from dmlcomm.planning.rails import ShownRail
from dmlcomm.planning.shared_cores import PROBE_BYTES, on_shared_cores
from dmlcomm.rail import Rail

SMALL_BYTES = (8, 64, 512)
# Beyond what buffers and token buckets on the way take at once.
LARGE_BYTES = (1 << 20, 2 << 20, 4 << 20, 8 << 20)
SMALL_REPETITIONS = 51
LARGE_REPETITIONS = 5


@dataclass(frozen=True)
class Fit:
    """alpha + b beta through measured times.

    Attributes:
        error: the largest difference of line and measurement, as a share of the measurement.
    """

    alpha_s: float
    beta_s_per_byte: float
    error: float


@dataclass(frozen=True)
class Probe:
    """A small all_reduce of ranks that share cores: its time is the median, on the slowest rank."""

    ranks_per_core: float
    seconds: float


@dataclass(frozen=True)
class Measured:
    """The network with its measured rates, and the fit of each of its levels (one if it is flat).

    Rates are those of whole frames, so that the planner's model gives the measured times.

    Attributes:
        rails: what each has shown while all ranks sent.
        probe: where ranks of several hosts share cores, else None.
    """

    network: PlannedNetwork
    fits: tuple[Fit, ...]
    rails: tuple[ShownRail, ...] = ()
    probe: Probe | None = None

    def core(self) -> _core.Topology:
        """With the median of the latencies, posting takes what the planner assumes; or, where cores
        are shared, with latency and posting as the probe has them."""
        if self.probe is not None:
            return on_shared_cores(self.network, self.probe.ranks_per_core, self.probe.seconds)
        topology = self.network.core()
        alpha_s = statistics.median(fit.alpha_s for fit in self.fits)
        topology.alpha_s = max(0.0, alpha_s - topology.overhead_s)
        return topology

    def __str__(self) -> str:
        lines = [
            f"measured on {'level ' + str(i) if self.network.sizes else 'all rails'}: "
            f"{fit.alpha_s * 1e6:.1f} us + {8e-6 / fit.beta_s_per_byte:.1f} Mb/s of data, "
            f"largest error of the fit {fit.error:.1%}"
            for i, fit in enumerate(self.fits)
        ]
        if self.probe is not None:
            lines.append(
                f"measured with {self.probe.ranks_per_core:.3g} ranks per core: an all_reduce of "
                f"{PROBE_BYTES} bytes takes {self.probe.seconds * 1e3:.2f} ms, which latency and "
                "posting follow"
            )
        return "\n".join(lines)


def measure_cluster(expected: PlannedNetwork | None, mtu: int | None) -> Measured | None:
    """Measures the job of this process; rank 0 gets the result, other ranks get None. Collective.

    Every rank has to be started by torchrun or `dmlcomm lab run`. It takes some seconds; longer
    where links are slower than 100 Mb/s.

    Args:
        expected: what the network has to be, apart from its rates; None: as it is found.
        mtu: to count headers with; that of the NICs if None.

    Raises:
        PlanError: this is no rank of a job, the network is another one than ``expected``, or there
            is one host only.
        CommError: the ranks do not reach each other.
    """
    _check_job()
    candidates = _candidates()
    dist.init_process_group("dmlcomm")
    try:
        found = _network_map(candidates)
        network = _planned(found, _common_mtu(candidates) if mtu is None else mtu)
        if expected is not None:
            _check_expected(network, expected)
        shown = rails.show_rails(candidates, len(network.rates_bps))
        fits = tuple(_measure_pair(peer) for peer in _neighbours(network, found.host_of_rank))
        probe = _measure_probe()
    finally:
        dist.destroy_process_group()
    if fits[0] is None:
        return None
    measured = tuple(fit for fit in fits if fit is not None)
    shown = _with_messages(shown, measured)
    return Measured(_with_rates(network, measured, shown), measured, shown, probe)


def _check_job() -> None:
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in variables if name not in _shell.inherited_environment()]
    if missing:
        raise PlanError(
            f"--measure needs a job of all hosts, and {missing[0]} is not set: start the command "
            "on every host, as `torchrun --nnodes ... -m dmlcomm ...`, or in a lab, as `dmlcomm "
            "lab run -- python -m dmlcomm ...`"
        )
    if not _core.config()["autotune"]:
        raise PlanError("DMLCOMM_AUTOTUNE=0: rails measure nothing; unset it for --measure")


def _candidates() -> tuple[Rail, ...]:
    """None where no NIC is usable: ranks of several hosts are told by the process group."""
    try:
        return nic.select_candidates(str(_core.config()["socket_ifname"]))
    except nic.InterfaceError:
        return ()


def _network_map(candidates: Sequence[Rail]) -> NetworkMap:
    """The network as a job finds it, with the rates that it assumes."""
    store = dist.PrefixStore("dmlcomm/measure", dist.distributed_c10d._get_default_store())
    timeout_s = dist.distributed_c10d.default_pg_timeout.total_seconds()
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    return agree(store, rank, num_ranks, timeout_s, candidates, is_whole_job=True)


def _common_mtu(candidates: Sequence[Rail]) -> int:
    """The least of all hosts' rails."""
    own = min((rail.mtu for rail in candidates if rail.mtu), default=MOST_MTU)
    mtus: list[int] = [own] * dist.get_world_size()
    dist.all_gather_object(mtus, own)
    return min(*mtus, MOST_MTU)


def _planned(found: NetworkMap, mtu: int) -> PlannedNetwork:
    """Raises PlanError if there is one host only, or hosts have different numbers of ranks."""
    ranks_of = Counter(found.host_of_rank)
    fewest, most = min(ranks_of.values()), max(ranks_of.values())
    if len(ranks_of) < 2:
        raise PlanError(
            f"all {most} ranks are on one host, whose NICs carry nothing between them: measure on "
            "two hosts or more, or in a lab (`dmlcomm lab up`)"
        )
    if fewest < most:
        raise PlanError(f"hosts have from {fewest} to {most} ranks: expected as many on each")
    return PlannedNetwork(len(ranks_of), found.grid, _assumed_rates(found), most, mtu)


def _assumed_rates(found: NetworkMap) -> tuple[float, ...]:
    if found.rates_bps:
        return tuple(map(float, found.rates_bps))
    num_rails = min(map(len, found.interfaces_of_rank))
    return (ASSUMED_BPS,) * (len(found.grid) or num_rails)


def _check_expected(found: PlannedNetwork, expected: PlannedNetwork) -> None:
    def shape(network: PlannedNetwork) -> str:
        return f"{network} with {network.ranks_per_host} ranks on each host"

    if shape(found) != shape(expected):
        raise PlanError(
            f"the job is {shape(found)}, expected {shape(expected)}: leave --topology and "
            "--ranks-per-host out to take what is there"
        )


def _with_messages(shown: Sequence[ShownRail], fits: Sequence[Fit]) -> tuple[ShownRail, ...]:
    """One fit per level; on a flat network messages may take any rail."""
    each = fits if len(fits) == len(shown) else list(fits) * len(shown)
    return tuple(
        replace(rail, message_s=fit.alpha_s) for rail, fit in zip(shown, each, strict=True)
    )


def fit(times_s: dict[int, float]) -> Fit:
    """From the median time of one way by bytes; sizes are `SMALL_BYTES` and `LARGE_BYTES`.

    Squares are those of relative differences, so that no size outweighs the others.
    """
    large = [(size, times_s[size]) for size in LARGE_BYTES]
    weights = [1 / t**2 for _, t in large]
    mean_b = sum(w * b for w, (b, _) in zip(weights, large, strict=True)) / sum(weights)
    mean_t = sum(w * t for w, (_, t) in zip(weights, large, strict=True)) / sum(weights)
    moment = sum(w * (b - mean_b) * (t - mean_t) for w, (b, t) in zip(weights, large, strict=True))
    spread = sum(w * (b - mean_b) ** 2 for w, (b, _) in zip(weights, large, strict=True))
    beta = moment / spread
    if beta <= 0:
        raise PlanError("large messages took no longer than small ones; measure again when idle")
    alpha = max(0.0, statistics.median(times_s[b] - b * beta for b in SMALL_BYTES))
    error = max(abs(alpha + b * beta - t) / t for b, t in times_s.items())
    return Fit(alpha, beta, error)


def _neighbours(network: PlannedNetwork, host_of_rank: Sequence[int]) -> Sequence[int]:
    """The first rank of a neighbour of rank 0's host on each level; of any on a flat network."""
    own = host_of_rank[0]
    if not network.sizes:
        return [next(rank for rank, host in enumerate(host_of_rank) if host != own)]
    lines = [grid.line(own, level, network.sizes) for level in range(len(network.sizes))]
    return [host_of_rank.index(next(host for host in line if host != own)) for line in lines]


def _measure_pair(peer: int) -> Fit | None:
    """To and fro between rank 0, which gets the fit, and ``peer``; the others wait."""
    times = {}
    for size in SMALL_BYTES + LARGE_BYTES:
        repetitions = SMALL_REPETITIONS if size in SMALL_BYTES else LARGE_REPETITIONS
        if dist.get_rank() in (0, peer):
            other = peer if dist.get_rank() == 0 else 0
            times[size] = _one_way_s(size, other, repetitions)
        dist.barrier()
    return fit(times) if dist.get_rank() == 0 else None


def _one_way_s(size: int, peer: int, repetitions: int) -> float:
    """Half of the median time to and fro, after one exchange that does not count."""
    buffer = torch.zeros(size, dtype=torch.uint8)
    seconds = []
    for _ in range(repetitions + 1):
        begin = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(buffer, peer)
            dist.recv(buffer, peer)
        else:
            dist.recv(buffer, peer)
            dist.send(buffer, peer)
        seconds.append((time.perf_counter() - begin) / 2)
    return statistics.median(seconds[1:])


def _measure_probe() -> Probe | None:
    """On all ranks, if hosts of one kernel have more ranks than it has cores."""
    ranks_per_core = _ranks_per_shared_core()
    if ranks_per_core <= 1:
        return None
    tensor = torch.zeros(PROBE_BYTES // 4)
    seconds = torch.zeros(SMALL_REPETITIONS, dtype=torch.float64)
    for i in range(SMALL_REPETITIONS):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        seconds[i] = time.perf_counter() - begin
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return Probe(ranks_per_core, statistics.median(seconds.tolist()))


def _ranks_per_shared_core() -> float:
    """Of the fullest kernel that several hosts share; 0 where each host has its own."""
    mine = (_core.host_id(), len(os.sched_getaffinity(0)))
    everybody: list[tuple[str, int]] = [mine] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    return _core.ranks_per_shared_core(everybody)


def _with_rates(
    network: PlannedNetwork, fits: Sequence[Fit], shown: Sequence[ShownRail]
) -> PlannedNetwork:
    """One fit per level of a grid; on a flat network the rails share one, by what they have shown.

    If a rail has shown nothing, they share it in equal parts.
    """
    rates = [8 / (one.beta_s_per_byte * network.efficiency) for one in fits]
    if not network.sizes:
        parts = [rail.slowest.shown_bps for rail in shown]
        parts = parts if all(parts) else [1] * len(parts)
        rates = [rates[0] * part / sum(parts) for part in parts]
    return replace(network, rates_bps=tuple(rates))
