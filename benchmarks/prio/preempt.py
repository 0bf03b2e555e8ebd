"""An urgent operation beside a large one: how long it waits."""

import json
import sys

from benchmarks import disturbance
from benchmarks.lab_run import measured_lines
from benchmarks.prio.settings import MTU, RATE, Settings
from benchmarks.row import Row
from dmlcomm.lab import Lab, Options
from dmlcomm.lab.cpu import CpuMeter

MOST_OF_TIME_ALONE = 2.0
MOST_OF_LARGE = 1.03
MOST_OF_BOTH = 1.02

# Name -> a variable of the ranks.
CASES = {
    "measured rates": "DMLCOMM_AUTOTUNE=1",
    "given rates": "DMLCOMM_AUTOTUNE=0",
    "no urgent connections": "DMLCOMM_TICKET_CONNECTIONS=0",
}


def preempt(settings: Settings) -> list[Row]:
    """An urgent all_reduce beside a large one that began before it.

    The bound of the urgent one is its time alone; that of the large one its time alone and that of
    the urgent one; that of both their time where both have the same ticket.
    """
    rows = []
    for how, variable in CASES.items():
        found, stolen = _preempt(settings, variable)
        case = f"{settings.flat}, {how}"
        small, large = f"{settings.small / 1e6:g} MB", f"{settings.large / 1e6:g} MB"
        shared = {"experiment": "preempt", "wrong": found["wrong"]}
        rows += [
            Row(
                case=f"{case}, {small} beside {large}",
                seconds=found["small_beside"],
                bound_s=found["small_alone"],
                most_of_bound=MOST_OF_TIME_ALONE,
                peer="the same ticket",
                peer_s=found["small_behind"],
                remark=disturbance.remark(stolen),
                **shared,
            ),
            Row(
                case=f"{case}, {large} beside {small}",
                seconds=found["large_beside"],
                bound_s=found["large_alone"] + found["small_alone"],
                most_of_bound=MOST_OF_LARGE,
                **shared,
            ),
            Row(
                case=f"{case}, both",
                seconds=found["both_beside"],
                bound_s=found["both_behind"],
                most_of_bound=MOST_OF_BOTH,
                **shared,
            ),
        ]
    return rows


def _preempt(settings: Settings, variable: str) -> tuple[dict, float]:
    """What `preempt_rank` prints, and the share of the cores' time that was not given."""
    with Lab(settings.flat, rate=RATE, options=Options(MTU)) as lab:
        sizes = {"large": settings.large, "small": settings.small}
        case = json.dumps({**sizes, "delay_s": settings.delay_s, "rounds": settings.preempt_rounds})
        command = [sys.executable, "-m", "benchmarks.prio.preempt_rank", case]
        meter = CpuMeter()
        (found,) = measured_lines(lab, command, ["-e", variable])
        return found, meter.use().stolen
