"""The queues of a port: strict priorities behind its rate, through netlink.

A token bucket (htb) has the port's rate. Below it queue 0 is served first, then queue 1, and so on:
each has next to no rate of its own and borrows what the port has, which htb lends by priority.
Packets without a mark come last, but have a share of the rate of their own, so they never starve.

What was there before, a token bucket (tbf) of the lab or the kernel's default, is put back.
"""

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_NEWQDISC, RTM_NEWTCLASS
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_pfifo, sched_tbf, tcmsg
from pyroute2.netlink.rtnl.tcmsg.common import tick_in_usec

from dmlcomm.errors import SwitchError
from dmlcomm.prio.switch.settings import MOST_QUEUES

# A queue of bytes has the same parameters as one of packets, which pyroute2 knows.
plugins.setdefault("bfifo", sched_pfifo)
# Of the options of a token bucket pyroute2 knows the first four: this one is for 34 Gb/s and more.
if len(sched_tbf.options.nla_map) == 4:
    sched_tbf.options.nla_map += (("TCA_TBF_RATE64", "uint64"),)

# Of our htb, by which it is recognised. The ids of its classes begin with it.
HANDLE = 0x0D3C0000
FIRST_QUEUE = HANDLE | 0x10
UNMARKED = HANDLE | 0x20
_ROOT_CLASS = HANDLE | 0x1
_TC_H_ROOT = 0xFFFFFFFF
_TC_H_INGRESS = 0xFFFFFFF1

# A class that no packet comes to. For a process that follows a killed one it keeps what was there:
# the `Bucket`, and as quantum the upper half of its handle.
_BEFORE = HANDLE | 0x2

# htb serves what a class may send by its own rate before it lends by priority.
_LEAST_RATE_BYTES = 1_000

# Rates of so many bytes per second do not fit into the field for them.
_RATE64 = 1 << 32

# Where there was no token bucket: what may leave at once covers the time by which the kernel wakes
# a queue late, and every queue holds what the port sends in 20 ms.
_BURST_US = 2_000
_QUEUE_US = 20_000
_LEAST_QUEUE_BYTES = 256 * 1024
_LARGEST_PACKET_BYTES = 65_536
_QUANTUM_BYTES = 65_536


@dataclass(frozen=True)
class Bucket:
    """Of a token bucket, in the kernel's units: what it does not round when it is put back.

    Attributes:
        rate_bytes: per second.
        buffer_ticks: the burst, as the time that it takes.
        overhead, mpu, linklayer: what a packet counts for: bytes more than it has, at least so
            many, and by which kind of link (``tc-stab(8)``).
    """

    rate_bytes: int
    buffer_ticks: int
    overhead: int
    mpu: int
    linklayer: int

    @property
    def burst_bytes(self) -> int:
        duration_us: float = self.buffer_ticks / tick_in_usec
        return round(duration_us * self.rate_bytes / 1_000_000)

    def fields(self, name: str) -> dict[str, int]:
        """Of a netlink message, for a rate of this name."""
        return {
            name: min(self.rate_bytes, _RATE64 - 1),
            f"{name}_overhead": self.overhead,
            f"{name}_mpu": self.mpu,
            f"{name}___reserved": self.linklayer,
        }


def _bucket(options: Any, parms: Any, rate64: str) -> Bucket:
    return Bucket(
        options.get_attr(rate64) or parms["rate"],
        parms["buffer"],
        parms["rate_overhead"],
        parms["rate_mpu"],
        parms["rate___reserved"],
    )


@dataclass(frozen=True)
class Before:
    """A port's queue before it got ours. ``bucket`` is None for the kernel's default."""

    parent: int = _TC_H_ROOT
    handle: int = 0
    bucket: Bucket | None = None
    limit_bytes: int = 0


@dataclass(frozen=True)
class QueueCounters:
    """Of one queue: what it has sent and dropped, and what waits."""

    sent_bytes: int
    drops: int
    backlog_bytes: int


def has_queues(qdiscs: list[Any]) -> bool:
    return any(qdisc["handle"] == HANDLE for qdisc in qdiscs)


def find_before(ip: IPRoute, index: int, port: str) -> Before:
    """What our queues replace. Raises SwitchError for what could not be put back.

    Queues that a killed process has left are as good as what they have replaced.
    """
    qdiscs = [qdisc for qdisc in ip.get_qdiscs(index=index) if qdisc["parent"] != _TC_H_INGRESS]
    for qdisc in qdiscs:
        if qdisc["handle"] == HANDLE:
            return _left_behind(ip, index, qdisc["parent"])
    made = [qdisc for qdisc in qdiscs if qdisc["handle"] != 0]  # the kernel's own have no handle
    kinds = [qdisc.get_attr("TCA_KIND") for qdisc in made]
    if not made:
        return Before()
    if kinds == ["tbf"] or sorted(kinds) == ["netem", "tbf"]:
        bucket = made[kinds.index("tbf")]
        root = made[kinds.index("netem")] if "netem" in kinds else bucket
        options = bucket.get_attr("TCA_OPTIONS")
        parms = options.get_attr("TCA_TBF_PARMS")
        if root["parent"] == _TC_H_ROOT and parms["peak"] == 0:
            found = _bucket(options, parms, "TCA_TBF_RATE64")
            return Before(bucket["parent"], bucket["handle"], found, parms["limit"])
    raise SwitchError(
        f'port {port} has a queueing discipline "{", ".join(kinds)}" that could not be put back '
        f"afterwards: remove it (tc qdisc del dev {port} root), then start again"
    )


def _left_behind(ip: IPRoute, index: int, parent: int) -> Before:
    for entry in ip.get_classes(index=index):
        if entry["handle"] == _BEFORE:
            options = entry.get_attr("TCA_OPTIONS")
            parms = options.get_attr("TCA_HTB_PARMS")
            found = _bucket(options, parms, "TCA_HTB_RATE64")
            return Before(parent, parms["quantum"] << 16, found, _limit_bytes(ip, index))
    return Before(parent)


def _limit_bytes(ip: IPRoute, index: int) -> int:
    """What a queue of ours holds."""
    leaf = next(q for q in ip.get_qdiscs(index=index) if q["parent"] == UNMARKED)
    return int(leaf.get_attr("TCA_OPTIONS")["limit"])


def rate_of(port: str, before: Before, given_bps: int | None) -> int:
    """Bits per second of a port: the given ones, its token bucket's, or its driver's."""
    rate = given_bps or (before.bucket.rate_bytes * 8 if before.bucket else _driver_rate(port))
    if rate is None:
        raise SwitchError(
            f"port {port} does not know its rate: say it, as --rate 10gbit, or a little less than "
            "the link has, so that packets wait here and not behind"
        )
    return rate


def _driver_rate(port: str) -> int | None:
    try:
        megabits = int(Path(f"/sys/class/net/{port}/speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1_000_000 if megabits > 0 else None


def take(
    ip: IPRoute, index: int, before: Before, rate_bps: int, num_queues: int, share: float
) -> None:
    """Puts our queues in the place of ``before``. Raises NetlinkError."""
    rate = rate_bps // 8
    _remove(ip, index, before)
    burst = max(rate * _BURST_US // 1_000_000, _LARGEST_PACKET_BYTES)
    limit = before.limit_bytes or max(rate * _QUEUE_US // 1_000_000, _LEAST_QUEUE_BYTES)
    common: dict[str, int] = {"quantum": _QUANTUM_BYTES}
    if before.bucket is not None:
        burst = before.bucket.burst_bytes
        common |= {"overhead": before.bucket.overhead, "mpu": before.bucket.mpu}
    common |= {"burst": burst, "cburst": burst}
    ip.tc("add", "htb", index=index, handle=HANDLE, parent=before.parent, default=UNMARKED & 0xFFFF)
    ip.tc("add-class", "htb", index, _ROOT_CLASS, parent=HANDLE, rate=rate, ceil=rate, **common)
    if before.bucket is not None:
        _keep(ip, index, before.bucket, before.handle)
    unmarked = max(round(rate * share), _LEAST_RATE_BYTES)
    classes = [(FIRST_QUEUE + queue, queue, _LEAST_RATE_BYTES) for queue in range(num_queues)]
    for handle, priority, own_rate in [*classes, (UNMARKED, MOST_QUEUES, unmarked)]:
        # What a class has saved up for itself is served before anything else.
        own = common if handle == UNMARKED else common | {"burst": 1}
        ip.tc(
            "add-class",
            "htb",
            index,
            handle,
            parent=_ROOT_CLASS,
            rate=own_rate,
            ceil=rate,
            prio=priority,
            **own,
        )
        leaf = (0x0D40 + (handle & 0xFF)) << 16
        ip.tc("add", "bfifo", index=index, handle=leaf, parent=handle, limit=limit)


def _keep(ip: IPRoute, index: int, bucket: Bucket, handle: int) -> None:
    """Adds the class `_BEFORE`."""
    buffers = {"buffer": bucket.buffer_ticks, "cbuffer": bucket.buffer_ticks}
    parms = bucket.fields("rate") | bucket.fields("ceil") | buffers | {"quantum": handle >> 16}
    options: list[tuple[str, Any]] = [("TCA_HTB_PARMS", parms)]
    options += [("TCA_HTB_RTAB", True), ("TCA_HTB_CTAB", True)]
    if bucket.rate_bytes >= _RATE64:
        options += [("TCA_HTB_RATE64", bucket.rate_bytes), ("TCA_HTB_CEIL64", bucket.rate_bytes)]
    _add(ip, RTM_NEWTCLASS, "htb", (index, HANDLE, _BEFORE), options)


def give_back(ip: IPRoute, index: int, before: Before) -> None:
    """Puts back what was there. Raises NetlinkError."""
    _remove(ip, index, before)
    bucket = before.bucket
    if bucket is None:
        return
    sizes = {"buffer": bucket.buffer_ticks, "limit": before.limit_bytes}
    options: list[tuple[str, Any]] = [("TCA_TBF_PARMS", bucket.fields("rate") | sizes)]
    options.append(("TCA_TBF_RTAB", True))
    if bucket.rate_bytes >= _RATE64:
        options.append(("TCA_TBF_RATE64", bucket.rate_bytes))
    _add(ip, RTM_NEWQDISC, "tbf", (index, before.parent, before.handle), options)


def _add(
    ip: IPRoute,
    message_type: int,
    kind: str,
    place: tuple[int, int, int],
    options: list[tuple[str, Any]],
) -> None:
    """Adds a queue or class with these options as they are, which `IPRoute.tc` would round."""
    message = tcmsg()
    message["index"], message["parent"], message["handle"] = place
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", {"attrs": options})]
    message["header"]["type"] = message_type
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    ip.nlm_request_batch([message])


def counters(ip: IPRoute, index: int) -> dict[int, QueueCounters]:
    """By the id of the class."""
    found = {}
    for entry in ip.get_classes(index=index):
        if entry["handle"] & 0xFFFF0000 == HANDLE:
            basic = entry.get_nested("TCA_STATS2", "TCA_STATS_BASIC")
            queue = entry.get_nested("TCA_STATS2", "TCA_STATS_QUEUE")
            counts = QueueCounters(basic["bytes"], queue["drops"], queue["backlog"])
            found[entry["handle"]] = counts
    return found


def _remove(ip: IPRoute, index: int, before: Before) -> None:
    with _absent_is_fine():
        ip.tc("del", index=index, parent=before.parent)


@contextlib.contextmanager
def _absent_is_fine() -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        # The kernel's default, or an interface that has just gone.
        if error.code not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
            raise
