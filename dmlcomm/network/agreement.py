"""The ranks of a new process group agree on the network of their hosts before it is made."""

from collections.abc import Sequence
from dataclasses import dataclass

from dmlcomm import _core
from dmlcomm.bml.specification import Network, TopologyError
from dmlcomm.log import get_logger
from dmlcomm.network import setting
from dmlcomm.network.discovery import NetworkMap, discover
from dmlcomm.network.exchange import Store, exchange
from dmlcomm.network.facts import Facts
from dmlcomm.rail import Rail


@dataclass
class _Job:
    """The network of the last group of all ranks; groups of some ranks are made after it."""

    is_grid: bool = False


_job = _Job()


def agree(
    store: Store,
    rank: int,
    num_ranks: int,
    timeout_s: float,
    candidates: Sequence[Rail],
    is_whole_job: bool,
    plan: str = "",
    problem: str = "",
) -> NetworkMap:
    """The map of the group's network, the same on all ranks; collective.

    A group of one rank publishes nothing.

    Args:
        candidates: of `nic.select_candidates`.
        plan: fingerprint of this rank's plan file, which has to be that of all ranks.
        problem: why this rank cannot take part; the others then fail, too.

    Raises:
        TopologyError: a rank has a problem, settings differ, or the network is not what they say;
            the same on all ranks.
        FactsError, TimeoutError: as `exchange` does.
    """
    try:
        network = setting.parse(str(_core.config()["topology"]))
    except TopologyError as error:
        network, problem = Network(), str(error)
    own = Facts(
        host_id=_core.host_id(),
        host_name=_core.host_name(),
        rails=tuple(candidates),
        network=network.fingerprint(),
        plan=plan,
        problem=problem,
    )
    if num_ranks == 1:
        if problem:
            raise TopologyError(problem)
        return discover([own], Network(), is_whole_job=False)
    facts = exchange(store, rank, num_ranks, own, timeout_s)
    found = discover(facts, network, is_whole_job, _job.is_grid)
    if is_whole_job:
        _job.is_grid = bool(found.grid)
    _log(found, rank)
    return found


def _log(found: NetworkMap, rank: int) -> None:
    rates = ", ".join(f"{rate / 1e6:g} Mb/s" for rate in found.rates_bps) or "not known"
    rails = ", ".join(found.interfaces_of_rank[rank]) or "none"
    get_logger().info(
        "topology: %s (%s); rails of this host: %s; rates: %s",
        found.shape,
        found.reason,
        rails,
        rates,
    )
    for speaker, text in found.warnings:
        if speaker == rank:
            get_logger().warning("%s", text)
