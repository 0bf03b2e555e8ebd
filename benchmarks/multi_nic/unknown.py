"""Rates that nobody gives: the lab's interfaces claim 10 Gb/s, MTU 1500, and the congestion control
is that of the machine. Bounds count headers.
"""

import statistics

from benchmarks import disturbance
from benchmarks.lab_run import Request, run
from benchmarks.multi_nic import settling
from benchmarks.multi_nic.settings import (
    ETHERNET_MTU,
    WARM_UP,
    WARM_UP_SMALL,
    WITH_HEADERS,
    Settings,
)
from benchmarks.multi_nic.turns import over_turns
from benchmarks.row import Row

OF_FLAT, OF_GRIDS = ("ring",), ("bml", "bml_ring")
LEAST_LARGE = 1_000_000  # bytes, for which links count more than algorithms
MOST_OF_BOUND = 1.05
MOST_OF_BOUND_UNEQUAL = 1.08
MOST_OF_BEST_ALGORITHM = 1.1


def rows(settings: Settings) -> list[Row]:
    """A large tensor has to be within its bar from the tenth call on, also where ranks meet at a
    barrier before each call.

    The bound of a small tensor is the time of the best algorithm, each forced by hand, in a group
    of its own. All of them have the small tensor only: large ones before would tell more about
    rates. Labs differ by more than algorithms do, so they take turns in the same processes.
    """
    found = []
    for spec, rate in settings.unknown:
        case = f"{spec} at {rate}"
        if not settings.wants(case):
            continue
        shape = spec if spec.startswith("bcube") else "flat"
        request = Request(spec, rate, (), ("dmlcomm",), mtu=ETHERNET_MTU).but(
            congestion="", env=(f"DMLCOMM_TOPOLOGY={shape}",)
        )
        for size in settings.unknown_sizes:
            of_size = request.but(sizes=(size,))
            if size < LEAST_LARGE:
                found += _small(case, of_size, settings)
                continue
            large = of_size.but(iterations=WARM_UP + settings.settled)
            found.append(_large(case, large))
            if spec == settings.meeting:
                found.append(_large(f"{case}, barriers", large.but(barriers=True)))
    return found


def _large(case: str, request: Request) -> Row:
    """Calls are counted from the second: the first one of a job is verified rather than timed."""
    (result,) = run(request)
    return settling.row(
        "unknown rates",
        f"{case}, {result['size'] / 1e6:g} MB",
        result["each_s"],
        bound_s=result["bound_s"] * WITH_HEADERS,
        most_of_bound=MOST_OF_BOUND_UNEQUAL if "," in request.rate else MOST_OF_BOUND,
        held_by=WARM_UP,
        wrong=result["wrong"],
        stolen=result["cpu_stolen"],
    )


def _small(case: str, request: Request, settings: Settings) -> list[Row]:
    """Two rows: the calls from the tenth to the thirtieth, in which ranks try algorithms, and
    those after. The bound is the time of the algorithm that is best in the latter, in the same
    calls."""
    is_grid = request.topology.startswith("bcube")
    names = [n for n in settings.by_hand if n not in (OF_FLAT if is_grid else OF_GRIDS)]
    backends = ("dmlcomm", *(f"dmlcomm:{name}" for name in names))
    early = WARM_UP_SMALL - WARM_UP
    request = request.but(
        backends=backends, warm_up=(WARM_UP,), iterations=early + settings.small_iterations
    )
    (size,) = request.sizes
    turns = [result for _ in range(settings.small_labs) for result in run(request)]
    small, *by_hand = over_turns(turns, size)

    def seconds(result: dict, calls: slice) -> float:
        return statistics.median(statistics.median(each[calls]) for each in result["each_s"])

    late = slice(early, None)
    best = min(by_hand, key=lambda result: seconds(result, late))
    name, stolen = best["backend"].partition(":")[2], disturbance.remark(small["cpu_stolen"])
    return [
        Row(
            experiment="unknown rates",
            case=f"{case}, {size / 1024:g} KiB{which}",
            seconds=seconds(small, calls),
            bound_s=seconds(best, calls),
            most_of_bound=MOST_OF_BEST_ALGORITHM,
            wrong=small["wrong"],
            remark="; ".join(filter(None, (f"the bound is {name}, forced", stolen))),
        )
        for which, calls in ((", calls 10 to 30", slice(0, early)), ("", late))
    ]
