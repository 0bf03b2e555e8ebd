"""How the hosts of a new process group are connected: what its ranks agree on before it is made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dmlcomm import _core
from dmlcomm.backends import nic
from dmlcomm.bml import facts, specification
from dmlcomm.bml.exchange import Store, exchange
from dmlcomm.bml.plan import Plan, discover
from dmlcomm.log import get_logger
from dmlcomm.planning import plan_file
from dmlcomm.planning.network import PlanError


@dataclass
class _Job:
    """What the last group of all ranks was found to be; its parts are made after it."""

    is_grid: bool = False


_job = _Job()


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
    planned = None
    try:
        planned = _plan_file()
    except PlanError as error:
        problem = problem or str(error)
    own = facts.Facts(
        host_id=_core.host_id(),
        host_name=_core.host_name(),
        rails=tuple(_fact_of(rail) for rail in candidates),
        network=network.fingerprint(),
        plan=planned.fingerprint if planned else "",
        problem=problem,
    )
    if size == 1:
        if problem:
            raise specification.TopologyError(problem)
        return discover([own], specification.Network(), is_whole_job=False)
    facts_of_rank = exchange(store, rank, size, own, timeout_s)
    plan = discover(facts_of_rank, network, is_whole_job, _job.is_grid)
    if is_whole_job:
        _job.is_grid = bool(plan.grid)
        if planned is not None:
            plan = _with_choices(plan, planned)
    _log(plan, rank)
    return plan


def _plan_file() -> plan_file.PlanFile | None:
    """What ``DMLCOMM_PLAN`` names. Raises PlanError."""
    path = str(_core.config()["plan"])
    try:
        return plan_file.load(path) if path else None
    except PlanError as error:
        raise PlanError(f"DMLCOMM_PLAN: {error}") from error


def _with_choices(plan: Plan, planned: plan_file.PlanFile) -> Plan:
    """``plan`` with the algorithms of a file, which has to be for these hosts."""
    if planned.fits(plan.grid, plan.host_of_rank):
        return replace(plan, choices=planned.choices)
    shape = "grid " + " x ".join(map(str, plan.grid)) if plan.grid else "flat"
    raise specification.TopologyError(
        f"DMLCOMM_PLAN: the plan is for {planned}; this job has {len(set(plan.host_of_rank))} "
        f"hosts ({shape}) with {len(plan.host_of_rank)} ranks: make a plan for it"
    )


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
    rates = ", ".join(f"{rate / 1e6:g} Mb/s" for rate in plan.rates_bps) or "not known"
    rails = ", ".join(plan.interfaces_of_rank[rank]) or "none"
    get_logger().info(
        "topology: %s (%s); rails of this host: %s; rates: %s", shape, plan.reason, rails, rates
    )
    for speaker, text in plan.warnings:
        if speaker == rank:
            get_logger().warning("%s", text)
