"""Makes dmlcomm's backend for a process group of torch.distributed."""

import atexit
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch.distributed import distributed_c10d as c10d

from dmlcomm import _core
from dmlcomm.backends import nic
from dmlcomm.log import get_logger

NAME = "dmlcomm"


def register() -> None:
    """Registers the backend for CPU tensors. A second call changes nothing."""
    if NAME.upper() in dist.Backend._plugins:
        return
    # A list: torch iterates over a string by characters.
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    _warn_if_bypassed()


def create(options: Any, pg_options: Any = None) -> Any:
    """Called by torch on every rank of a new group, with c10d's DistributedBackendOptions."""
    if pg_options is not None and not isinstance(pg_options, C10dBackend.Options):
        raise TypeError(
            f"pg_options of backend dmlcomm: expected None or Backend.Options, got {pg_options!r}"
        )
    extension = _extension()
    rails, problem = _rails()
    try:
        return extension.create(
            store=options.store,
            rank=options.group_rank,
            size=options.group_size,
            timeout=options.timeout,
            name=options.group_id if options.global_ranks_in_group else "default_pg",
            global_ranks=[int(rank) for rank in options.global_ranks_in_group],
            rails=[(rail.interface, rail.address) for rail in rails],
        )
    except dist.DistBackendError as error:
        raise error from problem


def _rails() -> tuple[tuple[nic.Rail, ...], Exception | None]:
    """The NICs to use between hosts. A wrong choice matters only if there are several hosts."""
    try:
        candidates = nic.select_candidates(str(_core.config()["socket_ifname"]))
        return tuple(rail for rail in candidates if rail.has_carrier), None
    except nic.InterfaceError as error:
        get_logger().info("no NIC is usable between hosts: %s", error)
        return (), error


def _extension() -> ModuleType:
    """The C++ adaptor. c10d has no stable ABI, so it fits one minor version of torch only."""
    running = ".".join(torch.__version__.split(".")[:2])
    advice = (
        f"reinstall dmlcomm for torch {running}: pip install --no-build-isolation "
        "--force-reinstall --no-deps dmlcomm"
    )
    try:
        from dmlcomm import _c10d
    except ImportError as error:
        raise ImportError(
            f"dmlcomm._c10d does not load with torch {running} ({error}); {advice}"
        ) from error
    if running != _c10d.TORCH_VERSION:
        raise ImportError(f"dmlcomm._c10d was built for torch {_c10d.TORCH_VERSION}; {advice}")
    _close_at_exit(_c10d)
    return _c10d


def _close_at_exit(extension: ModuleType) -> None:
    """Groups that nobody destroyed must not keep threads that outlive the interpreter."""
    atexit.unregister(extension.close_all)
    atexit.register(extension.close_all)


def _warn_if_bypassed() -> None:
    """Before 2.15, torch hands every backend name to torchcomms when that is switched on."""
    in_use = getattr(c10d, "_use_torchcomms_enabled", lambda: False)
    if in_use() and not hasattr(c10d, "_torchcomms_handles_backend"):
        get_logger().warning(
            "TORCH_DISTRIBUTED_USE_TORCHCOMMS is set: torch %s then bypasses backend dmlcomm; "
            "unset it to use dmlcomm",
            torch.__version__,
        )
