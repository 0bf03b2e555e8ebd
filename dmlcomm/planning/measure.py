"""Latency and rates of the running cluster: rank 0 and its neighbours send to and fro.

The model is that of the planner: a message of b bytes takes alpha + b beta. Small messages give
alpha; beta is the slope of a least-squares line over large ones. Each size counts with the median
of its repetitions, so that single delays do not matter. Where ranks of several hosts share cores,
a small all_reduce gives the latency; see `shared_cores`.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from dmlcomm import _core
from dmlcomm.planning.network import PlanError, PlannedNetwork
from dmlcomm.planning.shared_cores import PROBE_BYTES, on_shared_cores

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
        probe: where ranks of several hosts share cores, else None.
    """

    network: PlannedNetwork
    fits: tuple[Fit, ...]
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


def measure_cluster(network: PlannedNetwork) -> Measured | None:
    """Measures from rank 0, which gets the result; the other ranks get None. Collective.

    Every rank has to be started by torchrun or `dmlcomm lab run`.

    Raises:
        PlanError: the numbers of ranks of job and network differ, or there is one host only.
    """
    dist.init_process_group("dmlcomm")
    try:
        if dist.get_world_size() != network.num_ranks or network.num_hosts < 2:
            raise PlanError(
                f"{network} has {network.num_hosts} hosts and {network.num_ranks} ranks, the job "
                f"{dist.get_world_size()} ranks; expected the same, on two hosts or more"
            )
        fits = tuple(_measure_pair(peer) for peer in _neighbours(network))
        probe = _measure_probe()
    finally:
        dist.destroy_process_group()
    if fits[0] is None:
        return None
    measured = tuple(fit for fit in fits if fit is not None)
    return Measured(_with_rates(network, measured), measured, probe)


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


def _neighbours(network: PlannedNetwork) -> Sequence[int]:
    """The first rank of a neighbour of host 0 on each level; of host 1 on a flat network."""
    if not network.sizes:
        return [network.ranks_per_host]
    peers, stride = [], network.ranks_per_host
    for size in network.sizes:
        peers.append(stride)
        stride *= size
    return peers


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


def _with_rates(network: PlannedNetwork, fits: Sequence[Fit]) -> PlannedNetwork:
    """One fit per level of a grid; on a flat network the rails share one, in equal parts."""
    rates = [8 / (one.beta_s_per_byte * network.efficiency) for one in fits]
    if not network.sizes:
        rates = rates * len(network.rates_bps)
        rates = [rate / len(rates) for rate in rates]
    return replace(network, rates_bps=tuple(rates))
