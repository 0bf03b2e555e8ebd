"""The experiments: each is a function from settings to rows."""

import statistics
from collections.abc import Callable
from dataclasses import replace

from benchmarks import disturbance
from benchmarks.lab_run import Request, run
from benchmarks.multi_nic import congestion, link_down, unkind, unknown
from benchmarks.multi_nic.model import model_s
from benchmarks.multi_nic.settings import MTU, RATE, SMALL, UNEQUAL_RATES, Settings
from benchmarks.multi_nic.turns import over_turns
from benchmarks.row import Row
from dmlcomm.planning.shared_cores import PROBE_BYTES
from dmlcomm.topology.shape import UNLIMITED

SMALL_TURNS = 5
ASYNC_BUCKETS = 4

# The bars. A NIC more than one is worth what the network gives, less what headers and waiting cost.
MOST_OF_BOUND = 1.05
MOST_OF_BOUND_UNEQUAL = 1.1
MOST_OF_BOUND_SHARED_HOSTS = 1.1
MOST_OF_BOUND_LINK_DOWN = 1.15
LEAST_SPEEDUP_BY_NICS = {2: 1.9, 3: 2.8}
LEAST_SPEEDUP_ONE_BUCKET = 1.9
LEAST_SPEEDUP_BUCKETS = 1.0
LEAST_SPEEDUP_SMALL = 5.0
LEAST_SPEEDUP_BESIDE = 1.0
MOST_OF_TIME_ALONE = 3.0


def bcube(settings: Settings) -> list[Row]:
    """One bucket on BCube; gloo with one NIC on as many hosts at one switch."""
    rows = []
    for spec in settings.bcubes:
        request = Request(
            spec, RATE, settings.sizes, ("dmlcomm",), mtu=MTU, seconds=settings.seconds
        )
        ours = run(request)
        peer_spec = f"flat:{ours[0]['hosts']},1"
        peers = run(request.but(topology=peer_spec, backends=("gloo",)))
        for result, peer in zip(ours, peers, strict=True):
            least = LEAST_SPEEDUP_BY_NICS.get(result["nics"])
            rows.append(_row("bcube", result, peer, f"gloo, {peer_spec}", MOST_OF_BOUND, least))
    return rows


def buckets(settings: Settings) -> list[Row]:
    """gloo is given both NICs: it takes one per operation, so several at once use both."""
    rows = []
    cases = (
        (1, settings.sizes[0], LEAST_SPEEDUP_ONE_BUCKET),
        (ASYNC_BUCKETS, settings.sizes[-1], LEAST_SPEEDUP_BUCKETS),
    )
    for count, size, least in cases:
        request = Request(settings.flat, RATE, (size,), mtu=MTU, gloo_nics=0, buckets=count)
        ours, peer = run(request.but(seconds=settings.seconds))
        rows.append(_row("buckets", ours, peer, "gloo, all NICs", None, least))
    return rows


def beside(settings: Settings) -> list[Row]:
    """Small operations while a bucket is reduced, and the bucket; gloo is given both NICs.

    The bound of a small one is its time alone. The bucket is not compared with the model, which
    prices an operation that runs alone.
    """
    size = settings.sizes[0]
    request = Request(settings.flat, RATE, (size,), mtu=MTU, gloo_nics=0, beside=SMALL)
    ours, peer = run(request.but(seconds=settings.seconds))
    large = _row("beside", ours, peer, "gloo, all NICs", None, LEAST_SPEEDUP_BESIDE)
    small_size = f"{SMALL >> 10} KiB"
    small = Row(
        experiment="beside",
        case=f"{ours['topology']}, {small_size} beside {size / 1e6:g} MB",
        seconds=ours["small_s"],
        bound_s=ours["small_alone_s"],
        most_of_bound=MOST_OF_TIME_ALONE,
        peer="gloo, all NICs",
        peer_s=peer["small_s"],
        least_speedup=LEAST_SPEEDUP_BESIDE,
        remark=f"the bound is its time alone, gloo's is {peer['small_alone_s'] * 1e3:.3g} ms",
    )
    return [replace(large, case=f"{large.case} beside {small_size}", model_s=None), small]


def unequal(settings: Settings) -> list[Row]:
    """NICs of different speed."""
    request = Request(settings.unequal, UNEQUAL_RATES, settings.sizes[:1], mtu=MTU, gloo_nics=0)
    ours, peer = run(request.but(seconds=settings.seconds))
    return [_row("unequal", ours, peer, "gloo, all NICs", MOST_OF_BOUND_UNEQUAL, None)]


def shared_hosts(settings: Settings) -> list[Row]:
    """Two ranks on every host; the bound is that of the hosts' network."""
    request = Request(settings.shared, RATE, settings.sizes[:1], mtu=MTU, ranks_per_host=2)
    ours, peer = run(request.but(seconds=settings.seconds))
    return [_row("shared hosts", ours, peer, "gloo, one NIC", MOST_OF_BOUND_SHARED_HOSTS, None)]


def small(settings: Settings) -> list[Row]:
    """Latency: links without a rate, so the processors are what is waited for.

    How fast those are a smaller all_reduce tells the model, in turns with the one that it expects.
    """
    sizes = (PROBE_BYTES, SMALL) * SMALL_TURNS
    request = Request(settings.bcubes[0], UNLIMITED, sizes, mtu=MTU)
    results = run(request.but(iterations=settings.small_iterations // SMALL_TURNS))
    probe, _ = over_turns(results, PROBE_BYTES)
    ours, peer = over_turns(results, SMALL)
    row = _row("small", ours, peer, "gloo, one NIC", None, LEAST_SPEEDUP_SMALL, probe["seconds"])
    return [row]


def link_goes_down(settings: Settings) -> list[Row]:
    """The cable of one NIC is pulled during an all_reduce, and put back later.

    One of k NICs with the same rate is left at least: the bound is that of k - 1 on that host.
    """
    spec, size = settings.bcubes[0], settings.sizes[0]
    found = link_down.run(spec, size, settings.iterations_down, settings.iterations_up)
    nics, bound_s = found.nics, found.bound_s
    before_s, down_s = statistics.median(found.before_s), statistics.median(found.down_s)
    left = (nics - 1) / nics
    back = "not at full speed again"
    if found.recovery_s is not None:
        back = f"full speed after {found.recovery_s:.2f} s"
    shared = {"experiment": "link down", "wrong": found.wrong}
    case = f"{spec}, {size / 1e6:g} MB"
    return [
        Row(case=f"{case}, link up", seconds=before_s, bound_s=bound_s, **shared),
        Row(
            case=f"{case}, pulled now",
            seconds=found.hit_s,
            bound_s=bound_s,
            remark=f"stall {(found.hit_s - before_s) * 1000:.0f} ms",
            **shared,
        ),
        Row(
            case=f"{case}, link down",
            seconds=down_s,
            bound_s=bound_s / left,
            most_of_bound=MOST_OF_BOUND_LINK_DOWN,
            model_s=model_s(spec, RATE, size, MTU, share=left),
            remark=disturbance.remark(found.cpu_stolen),
            **shared,
        ),
        Row(
            case=f"{case}, put back",
            seconds=found.up_s[-1],
            bound_s=bound_s,
            remark=back,
            **shared,
        ),
    ]


EXPERIMENTS: dict[str, Callable[[Settings], list[Row]]] = {
    "bcube": bcube,
    "buckets": buckets,
    "beside": beside,
    "unequal": unequal,
    "unknown-rates": unknown.rows,
    "unkind": unkind.rows,
    "congestion": congestion.rows,
    "shared-hosts": shared_hosts,
    "link-down": link_goes_down,
    "small": small,
}


def _row(
    experiment: str,
    ours: dict,
    peer: dict,
    peer_name: str,
    most: float | None,
    least: float | None,
    probe_s: float | None = None,
) -> Row:
    size = f"{ours['size'] / 1e6:g} MB" if ours["size"] >= 10**6 else f"{ours['size'] >> 10} KiB"
    parts = f" in {ours['buckets']} buckets" if ours["buckets"] > 1 else ""
    ranks = f" x {ours['ranks_per_host']} ranks" if ours["ranks_per_host"] > 1 else ""
    return Row(
        experiment=experiment,
        case=f"{ours['topology']}{ranks}, {size}{parts}",
        seconds=ours["seconds"],
        bound_s=ours["bound_s"],
        most_of_bound=most,
        peer=peer_name,
        peer_s=peer["seconds"],
        least_speedup=least,
        model_s=model_s(
            ours["topology"],
            ours["rate"],
            ours["size"],
            ours["mtu"],
            ours["ranks_per_host"],
            probe_s=probe_s,
        ),
        wrong=ours["wrong"] + peer["wrong"],
        remark=disturbance.remark(max(ours["cpu_stolen"], peer["cpu_stolen"])),
    )
