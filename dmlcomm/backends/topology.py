"""How the hosts of a new process group are connected: what its ranks agree on before it is made."""

from collections.abc import Sequence

from dmlcomm import _core
from dmlcomm.backends import nic
from dmlcomm.bml import facts, specification
from dmlcomm.bml.exchange import Store, exchange
from dmlcomm.bml.plan import Plan, discover
from dmlcomm.log import get_logger


def agree(
    store: Store,
    rank: int,
    size: int,
    timeout_s: float,
    candidates: Sequence[nic.Rail],
    is_whole_job: bool,
) -> Plan:
    """The plan for the group, the same on all ranks; collective.

    A group of one rank publishes nothing.

    Raises:
        TopologyError: a rank's setting is wrong, settings differ, or the network is not what they
            say; the same on all ranks.
        FactsError, TimeoutError: as `exchange` does.
    """
    text = str(_core.config()["topology"])
    try:
        network, problem = specification.parse(text), ""
    except specification.TopologyError as error:
        network, problem = specification.Network(), str(error)
    own = facts.Facts(
        host_id=_core.host_id(),
        host_name=_core.host_name(),
        rails=tuple(_fact_of(rail) for rail in candidates),
        network=network.fingerprint(),
        problem=problem,
    )
    if size == 1:
        if problem:
            raise specification.TopologyError(problem)
        return discover([own], specification.Network(), is_whole_job=False)
    plan = discover(exchange(store, rank, size, own, timeout_s), network, is_whole_job)
    _log(plan, rank)
    return plan


def _fact_of(rail: nic.Rail) -> facts.Rail:
    return facts.Rail(
        interface=rail.interface,
        address=rail.address,
        prefix_length=rail.prefixlen,
        has_carrier=rail.has_carrier,
        speed_mbps=rail.speed_mbps,
    )


def _log(plan: Plan, rank: int) -> None:
    shape = "grid " + " x ".join(map(str, plan.grid)) if plan.grid else "flat"
    rails = ", ".join(plan.interfaces_of_rank[rank]) or "none"
    get_logger().info("topology: %s (%s); rails of this host: %s", shape, plan.reason, rails)
    for speaker, text in plan.warnings:
        if speaker == rank:
            get_logger().warning("%s", text)
