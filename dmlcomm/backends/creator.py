"""Makes dmlcomm's backend for a process group of torch.distributed."""

import atexit
import contextlib
import functools
import os
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch.distributed import distributed_c10d as c10d

from dmlcomm import _core, errors
from dmlcomm.backends import shrinking, versions
from dmlcomm.bml.specification import TopologyError
from dmlcomm.log import get_logger
from dmlcomm.network import nic
from dmlcomm.network import seat as seats
from dmlcomm.network.agreement import agree
from dmlcomm.network.discovery import NetworkMap
from dmlcomm.network.facts import FactsError
from dmlcomm.rail import Rail

if TYPE_CHECKING:
    from dmlcomm.planning.plan_file import PlanFile

NAME = "dmlcomm"

_seats: dict[int, seats.Seat] = {}
_job_names: list[str] = []


def register() -> None:
    """Registers the backend for CPU and CUDA tensors. A second call changes nothing."""
    if NAME.upper() in dist.Backend._plugins:
        return
    # A list: torch iterates over a string by characters.
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    shrinking.keep_type(NAME)
    _warn_if_bypassed()


def create(options: Any, pg_options: Any = None) -> Any:
    """Called by torch on every rank of a new group, with c10d's DistributedBackendOptions.

    Raises ImportError if dmlcomm was built for another torch.
    """
    versions.check(torch.__version__)
    if pg_options is not None and not isinstance(pg_options, C10dBackend.Options):
        raise TypeError(
            f"pg_options of backend dmlcomm: expected None or Backend.Options, got {pg_options!r}"
        )
    extension = _extension()
    _record_calls(extension)
    given = getattr(pg_options, "algorithm", "")
    setting = given or str(_core.config()["algorithm"])
    algorithm = _core.without_parameter_servers(setting)
    plan = _plan_file()
    by_plan = not setting and plan.file is not None and bool(plan.file.servers)
    priority = seats.priority_of(getattr(pg_options, "priority", None))
    servers = None
    if algorithm != setting or by_plan:
        from dmlcomm.backends import server_all_reduce  # with gRPC, which others need not load

        servers = server_all_reduce.for_group(options, priority)
    try:
        try:
            seat = _seat(options, priority)
        except errors.PsRefusedError as error:
            if _is_formed(options):
                with contextlib.suppress(errors.CommError):  # so that the other ranks know, too
                    _agree(options, (), _Plan(problem=f"refused: {error}"))
            raise errors.CommError(f"refused: {error}") from error
        backend = _create(extension, options, algorithm, servers, plan, seat)
        extension.set_given_options(backend, given, priority)
        return backend
    except BaseException:
        if servers is not None:
            servers.close()
        raise


def _record_calls(extension: ModuleType) -> None:
    """Tells torch, before it has made the group, that dmlcomm feeds its flight recorder itself."""
    # A torch without the set records, too: everything twice, but nothing is lost.
    self_recording: set[str] = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    if extension.RECORDS_FLIGHTS:
        self_recording.add(NAME)


def _seat(options: Any, priority: int) -> seats.Seat | None:
    """Of this process at the arbiter of its host, until the process ends: one per priority.

    Raises PsRefusedError: the host has no place for the job, or no longer.
    """
    if priority not in _seats:
        taken = seats.take(functools.partial(_job_name, options.store), priority)
        if taken is None:
            return None
        _seats[priority] = taken
    _seats[priority].check()
    return _seats[priority]


def _job_name(store: Any) -> str:
    """The same on all ranks: that of the first group of this process, which is the whole job."""
    if not _job_names:
        own = f"{_core.host_name()}:{os.getpid()}"
        _job_names.append(bytes(store.compare_set("dmlcomm/job", "", own)).decode())
    return _job_names[0]


def _create(
    extension: ModuleType,
    options: Any,
    algorithm: str,
    servers: Any,
    plan: "_Plan",
    taken: seats.Seat | None,
) -> Any:
    candidates, problem = _candidates()
    is_formed = _is_formed(options)
    if is_formed:
        network, choices = _agree(options, candidates, plan)
    else:
        network, choices = _unformed(options, candidates, plan, servers)
    address_of = {rail.interface: rail.address for rail in candidates}
    try:
        return extension.create(
            store=options.store,
            rank=options.group_rank,
            size=options.group_size,
            timeout=options.timeout,
            name=options.group_id if options.global_ranks_in_group else "default_pg",
            global_ranks=[int(rank) for rank in options.global_ranks_in_group],
            rails=[
                (name, address_of[name]) for name in network.interfaces_of_rank[options.group_rank]
            ],
            grid=list(network.grid),
            host_of_rank=list(network.host_of_rank),
            is_whole_job=_is_whole_job(options),
            rail_rates_bps=list(network.rates_bps),
            plan=choices,
            algorithm=algorithm,
            servers=servers,
            seat=taken.memory.fileno() if taken else -1,
            is_formed=is_formed,
        )
    except dist.DistBackendError as error:
        raise error from problem


def _candidates() -> tuple[tuple[Rail, ...], Exception | None]:
    """The NICs to use between hosts. A wrong choice matters only if there are several hosts."""
    try:
        return nic.select_candidates(str(_core.config()["socket_ifname"])), None
    except nic.InterfaceError as error:
        get_logger().info("no NIC is usable between hosts: %s", error)
        return (), error


def _agree(options: Any, candidates: tuple[Rail, ...], plan: "_Plan") -> tuple[NetworkMap, str]:
    """How the hosts are connected, and what a plan file chooses. Raises CommError."""
    is_whole_job = _is_whole_job(options)
    planned = plan.file
    try:
        network = agree(
            options.store,
            options.group_rank,
            options.group_size,
            options.timeout.total_seconds(),
            candidates,
            is_whole_job,
            planned.fingerprint if planned else "",
            plan.problem,
        )
    except TopologyError as error:
        raise errors.CommError(f"invalid_argument: {error}") from error
    except FactsError as error:
        raise errors.CommError(f"protocol_error: {error}") from error
    except TimeoutError as error:
        raise errors.CommTimeoutError(f"timeout: {error}") from error
    if planned is None or not is_whole_job or options.group_size == 1:
        return network, ""
    if not planned.fits(network.grid, network.host_of_rank):
        raise errors.CommError(
            f"invalid_argument: DMLCOMM_PLAN: the plan is for {planned}; this job has "
            f"{len(set(network.host_of_rank))} hosts ({network.shape}) with {options.group_size} "
            f"ranks: make a plan for it"
        )
    return network, planned.choices


def _is_formed(options: Any) -> bool:
    """Whether the ranks meet now, and not when `reconfigure` names them."""
    return not getattr(options, "enable_reconfigure", False)


def _unformed(
    options: Any, candidates: tuple[Rail, ...], plan: "_Plan", servers: Any
) -> tuple[NetworkMap, str]:
    """Of a group whose ranks `reconfigure` will name: nobody says how their hosts are connected.

    Raises CommError.
    """
    if servers is not None or plan.file is not None or plan.problem:
        raise errors.CommError(
            "unsupported: enable_reconfigure with a plan file (DMLCOMM_PLAN) or with all_reduce "
            "through parameter servers, which are for ranks that are known; leave out one of them"
        )
    interfaces = tuple(rail.interface for rail in candidates)
    num_ranks = options.group_size
    return NetworkMap((), (), (interfaces,) * num_ranks, "its ranks are not known yet"), ""


def _is_whole_job(options: Any) -> bool:
    """Without ranks it is the default group, whose size is the job's."""
    ranks = options.global_ranks_in_group
    return not ranks or len(ranks) == dist.get_world_size()


@dataclass(frozen=True)
class _Plan:
    """What ``DMLCOMM_PLAN`` names, and why this rank cannot take part."""

    file: "PlanFile | None" = None
    problem: str = ""


def _plan_file() -> _Plan:
    path = str(_core.config()["plan"])
    if not path:
        return _Plan()
    from dmlcomm.planning import plan_file  # with yaml, which most jobs do without

    try:
        return _Plan(plan_file.load(path))
    except ValueError as error:
        return _Plan(problem=f"DMLCOMM_PLAN: {error}")


def _extension() -> ModuleType:
    """The C++ adaptor. Raises ImportError."""
    from dmlcomm import _c10d

    # Groups that nobody destroyed must not keep threads that outlive the interpreter.
    atexit.unregister(_c10d.close_all)
    atexit.register(_c10d.close_all)
    return _c10d


def _warn_if_bypassed() -> None:
    """Before 2.15, torch hands every backend name to torchcomms when that is switched on."""
    in_use = getattr(c10d, "_use_torchcomms_enabled", lambda: False)
    if in_use() and not hasattr(c10d, "_torchcomms_handles_backend"):
        get_logger().warning(
            "TORCH_DISTRIBUTED_USE_TORCHCOMMS is set: torch %s then bypasses backend dmlcomm; "
            "unset it to use dmlcomm",
            torch.__version__,
        )
