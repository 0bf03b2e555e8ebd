"""Which ranks of a group have their GPUs on one host, and NCCL between these.

The C++ adaptor calls it at the first all_reduce of CUDA tensors, unless ``DMLCOMM_CUDA_NCCL`` is
``never``: `describe` on each rank, then `join` on each with what all have said
(csrc/torch/hostwise_all_reduce.h).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dmlcomm import _core
from dmlcomm.log import get_logger


@dataclass(frozen=True)
class Gpu:
    """What a rank says of its own.

    Attributes:
        host: the same text on all ranks of a host, and on no others.
        gpu: the same text on all ranks that share a GPU, on no others of the host.
        nccl: version of torch's NCCL; empty without one.
    """

    host: str
    gpu: str
    nccl: str


@dataclass(frozen=True)
class Places:
    """What all ranks conclude alike, seen by one of them.

    Attributes:
        inside: the ranks of this host, in order. Empty: NCCL is not used.
        across: the ranks at this one's place among them, on all hosts.
        obstacle: why NCCL cannot be used; empty where there is no use for it.
    """

    inside: tuple[int, ...] = ()
    across: tuple[int, ...] = ()
    obstacle: str = ""


def find_places(gpus: Sequence[Gpu], rank: int) -> Places:
    """Where ``rank`` is among the ranks that have said ``gpus``."""
    ranks_of: dict[str, list[int]] = {}
    for each, gpu in enumerate(gpus):
        ranks_of.setdefault(gpu.host, []).append(each)
    hosts = list(ranks_of.values())
    if all(len(ranks) == 1 for ranks in hosts):
        return Places()
    if obstacle := _obstacle(gpus, hosts):
        return Places(obstacle=obstacle)
    inside = ranks_of[gpus[rank].host]
    place = inside.index(rank)
    return Places(tuple(inside), tuple(ranks[place] for ranks in hosts))


def _obstacle(gpus: Sequence[Gpu], hosts: Sequence[Sequence[int]]) -> str:
    for rank, gpu in enumerate(gpus):
        if not gpu.nccl:
            return f"torch on rank {rank} has no NCCL"
    sizes = sorted({len(ranks) for ranks in hosts})
    if len(sizes) > 1:
        return f"hosts have unequal numbers of ranks: {', '.join(map(str, sizes))}"
    for ranks in hosts:
        if len({gpus[rank].gpu for rank in ranks}) < len(ranks):
            return f"some of ranks {', '.join(map(str, ranks))} share a GPU, which NCCL refuses"
        if len({gpus[rank].nccl for rank in ranks}) > 1:
            return f"ranks {', '.join(map(str, ranks))} have different versions of NCCL"
    return ""


@dataclass(frozen=True)
class Joined:
    """What `join` has made on a rank.

    Attributes:
        group: the backend of the ranks of this host, not yet connected. None: NCCL is not used.
        inside: as in `Places`.
        across: as in `Places`.
        refusal: why the operation is to be an error on all ranks; else empty.
    """

    group: Any = None
    inside: tuple[int, ...] = ()
    across: tuple[int, ...] = ()
    refusal: str = ""


def describe(device: int) -> str:
    """This rank's `Gpu`, as the others read it. ``device`` is torch's index."""
    nccl: Any = torch.cuda.nccl
    version = ".".join(map(str, nccl.version())) if dist.is_nccl_available() else ""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return json.dumps(asdict(Gpu(_core.host_id(), uuid, version)))


def join(
    texts: Sequence[str],
    rank: int,
    store: Any,
    name: str,
    global_ranks: Sequence[int],
    timeout: timedelta,
) -> Joined:
    """Makes NCCL's backend of the ranks of this host, where all hosts have equally many.

    Args:
        texts: what `describe` has returned on each rank of the group.
        rank: the own one in the group.
        store: the group's, for this purpose.
        name: the group's.
        global_ranks: of the group's ranks.
        timeout: after which NCCL ends the process.
    """
    places = find_places([Gpu(**json.loads(text)) for text in texts], rank)
    if places.obstacle:
        if _core.config()["cuda_nccl"] == "always":
            return Joined(
                refusal=f"DMLCOMM_CUDA_NCCL=always, but {places.obstacle}; set it to auto"
            )
        log = get_logger().info if rank > 0 else get_logger().warning
        log("group '%s': CUDA tensors do not go by NCCL inside hosts: %s", name, places.obstacle)
    if not places.inside:
        return Joined()
    own = dist.PrefixStore(f"inside/{places.inside[0]}", store)
    members = [global_ranks[each] for each in places.inside]
    try:
        group = make_inside(
            own, places.inside.index(rank), members, f"{name} (inside a host)", timeout
        )
    except Exception as error:  # other ranks wait to be told
        return Joined(refusal=f"NCCL cannot be used: {error}")
    return Joined(group, places.inside, places.across)


def make_inside(
    store: Any, rank: int, members: Sequence[int], name: str, timeout: timedelta
) -> Any:
    """NCCL's backend of the ranks of a host, by their global ranks; not yet connected."""
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.group_name = name
    options.global_ranks_in_group = list(members)
    return dist.ProcessGroupNCCL(store, rank, len(members), options)
