"""Networks that are unkind: rates that change in the middle of a job, traffic of others, loss,
NICs that are slow in one direction, NICs of four rates, hosts that forward nothing.

Rates are not given, the lab's interfaces claim 10 Gb/s, MTU 1500, and the congestion control is
that of the machine. Bounds count headers.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from benchmarks import disturbance
from benchmarks.lab_run import Request, run
from benchmarks.multi_nic import link_down, phases, settling
from benchmarks.multi_nic.phases import Phase
from benchmarks.multi_nic.settings import (
    ETHERNET_MTU,
    HALF,
    QUARTER,
    RATE,
    WARM_UP,
    WITH_HEADERS,
    Settings,
)
from benchmarks.row import Row
from dmlcomm.lab import Lab, Options
from dmlcomm.planning import network as planned
from dmlcomm.topology import graph as topology

OPTIONS = Options(mtu=ETHERNET_MTU, congestion="")
IN_WORDS = {QUARTER: "a quarter", HALF: "half"}
ADAPTS_IN = 20  # operations after a change
CHANGED = "eth1"
FOUR_RATES = "250mbit,100mbit,100mbit,10mbit"

Condition = Callable[[Lab], AbstractContextManager[None]]

MOST_OF_BOUND_CHANGED = 1.15
MOST_OF_BOUND_LOSSY = 1.3
MOST_OF_BOUND_UNEQUAL = 1.08
MOST_OF_BOUND_FORWARDS_NOTHING = 1.05


def rows(settings: Settings) -> list[Row]:
    """See ``__main__``."""
    found = []
    for spec, left, size in settings.changing:
        what = f"{size / 1e6:g} MB, {IN_WORDS[left]} of a rail left"
        found += _changing(settings, spec, size, left, what, _slower(left))
    spec, _, size = settings.changing[0]
    found += _changing(settings, spec, size, HALF, "half of a rail taken", _loaded)
    return [*found, *_lossy(settings), *_unequal(settings), *_without_forwarding(settings)]


def bound_s(spec: str, rates: str, size: int) -> float:
    """The least time of an all_reduce, with headers, where rails have ``rates``.

    Each of H hosts sends 2(H - 1)/H x S over all its rails. The n hosts of a line of level l stand
    for n sides of a grid: each side sends 2(n - 1)/n x S over the rails l of its H/n hosts.
    """
    network = planned.parse(spec, rates)
    hosts = network.num_hosts
    crossings = [(hosts, sum(network.rates_bps))]
    crossings += [
        (n, hosts // n * rate) for n, rate in zip(network.sizes, network.rates_bps, strict=False)
    ]
    most = max(2 * (sides - 1) / sides * size * 8 / rate for sides, rate in crossings)
    return most * WITH_HEADERS


def _slower(rate: str) -> Condition:
    @contextmanager
    def condition(lab: Lab) -> Iterator[None]:
        _set(lab, f"rate={rate}")
        yield
        _set(lab, f"rate={RATE}")

    return condition


@contextmanager
def _loaded(lab: Lab) -> Iterator[None]:
    with lab.load(CHANGED, HALF):
        yield


def _set(lab: Lab, change: str) -> None:
    for host in topology.hosts(lab.graph()):
        lab.set(f"{host}:{CHANGED}", change)


def _changing(
    settings: Settings, spec: str, size: int, left: str, what: str, condition: Condition
) -> list[Row]:
    """One rail of all hosts has the rate ``left`` for a while; rows of that time, and after it."""
    case = f"{spec}, {what}"
    if not settings.wants(case):
        return []
    calm = lambda lab: nullcontext()  # noqa: E731
    before = Phase(WARM_UP + 1, calm)
    during, after = (Phase(ADAPTS_IN + settings.settled, each) for each in (condition, calm))
    wrong, stolen = phases.run(
        spec, RATE, size, (before, during, after), OPTIONS, f"DMLCOMM_TOPOLOGY={_shape(spec)}"
    )

    def settled(case: str, phase: Phase, bound: float, wrong: int) -> Row:
        return settling.row(
            "unkind",
            case,
            phase.seconds,
            bound_s=bound,
            most_of_bound=MOST_OF_BOUND_CHANGED,
            held_by=ADAPTS_IN + 1,
            wrong=wrong,
            stolen=stolen,
        )

    return [
        settled(case, during, bound_s(spec, f"{RATE},{left}", size), wrong),
        settled(f"{case}, then all", after, bound_s(spec, RATE, size), 0),
    ]


def _lossy(settings: Settings) -> list[Row]:
    """A path has two links, each of which loses half of the share."""
    found = []
    for spec in settings.lossy:
        request = _request(settings, spec, RATE).but(gloo_nics=0, backends=("dmlcomm", "gloo"))
        good = bound_s(spec.rpartition(",")[0] + ",1", RATE, request.sizes[0])
        for loss, bound, most in (
            ("0.5%", good, MOST_OF_BOUND_LOSSY),
            ("0.05%", bound_s(spec, RATE, request.sizes[0]), None),
        ):
            share = f"{2 * float(loss.rstrip('%')):g}%"
            case = f"{spec}, {share} lost on a rail"
            if not settings.wants(case):
                continue
            ours, peer = run(request.but(changes=((CHANGED, f"loss={loss}"),)))
            row = _row(case, ours, bound, most)
            found.append(row.beside("gloo, all NICs", peer["seconds"], peer["wrong"]))
    return found


def _unequal(settings: Settings) -> list[Row]:
    """A NIC of one host that sends at a quarter of the rate; NICs of 25:10:10:1."""
    size, spec, of_four = settings.sizes[0], settings.changing[0][0], settings.four_rates
    one_slow, four = f"{spec}, a NIC that sends slowly", f"{of_four}, 25:10:10:1"
    found = []
    if settings.wants(one_slow):
        change = (f"host1:{CHANGED}", f"out={QUARTER}")
        (result,) = run(_request(settings, spec, RATE).but(changes=(change,)))
        found.append(_row(one_slow, result, bound_s(spec, f"{RATE},{QUARTER}", size)))
    if settings.wants(four):
        (result,) = run(_request(settings, of_four, FOUR_RATES))
        bound = bound_s(of_four, FOUR_RATES, size)
        found.append(_row(four, result, bound, MOST_OF_BOUND_UNEQUAL))
    return found


def _without_forwarding(settings: Settings) -> list[Row]:
    """The network as it is, and while a cable is pulled: the relays are ranks."""
    spec, size = settings.bcubes[0], settings.sizes[0]
    case = f"{spec} that forwards nothing"
    pulled = f"{case}, cable pulled"
    found = []
    if settings.wants(case):
        request = _request(settings, spec, RATE).but(forwarding=False)
        (ours,) = run(request.but(env=(*request.env, "GLOO_SOCKET_IFNAME=mgmt0")))
        found.append(_row(case, ours, bound_s(spec, RATE, size), MOST_OF_BOUND_FORWARDS_NOTHING))
    if settings.wants(pulled):
        down = link_down.run(
            spec, size, settings.iterations_down, settings.iterations_up, forwarding=False
        )
        left = (down.nics - 1) / down.nics
        row = Row(
            experiment="unkind",
            case=pulled,
            seconds=statistics.median(down.down_s),
            bound_s=down.bound_s / left,
            wrong=down.wrong,
            remark=f"the call in which it was pulled took {down.hit_s * 1e3:.0f} ms",
        )
        found.append(row)
    return found


def _request(settings: Settings, spec: str, rate: str) -> Request:
    request = Request(spec, rate, settings.sizes[:1], ("dmlcomm",), mtu=ETHERNET_MTU)
    return request.but(
        congestion="",
        warm_up=(WARM_UP,),
        seconds=settings.seconds,
        env=(f"DMLCOMM_TOPOLOGY={_shape(spec)}",),
    )


def _shape(spec: str) -> str:
    """What `DMLCOMM_TOPOLOGY` says of it, which names no rates."""
    return "flat" if spec.startswith("flat") else spec


def _row(case: str, result: dict, bound: float, most: float | None = None) -> Row:
    return Row(
        experiment="unkind",
        case=case,
        seconds=result["seconds"],
        bound_s=bound,
        most_of_bound=most,
        wrong=result["wrong"],
        remark=disturbance.remark(result["cpu_stolen"]),
    )
