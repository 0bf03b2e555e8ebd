"""An urgent operation beside a large one: how long it waits."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks import disturbance
from benchmarks.lab_run import measured_lines
from benchmarks.prio.settings import MTU, RATE, Settings
from benchmarks.prio.switch import schedule
from benchmarks.row import Row
from dmlcomm.lab import Lab, Options
from dmlcomm.lab.cpu import CpuMeter
from dmlcomm.prio.ticket import DEFAULT_TICKET

URGENT = 0
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
        pair = Pair("preempt", settings.large, "all_reduce", settings.small, "all_reduce")
        rows += _rows(settings, pair, how, [(URGENT, DEFAULT_TICKET)], variable)
    return rows


def tickets(settings: Settings) -> list[Row]:
    """The same with the tickets of ``settings.tickets``; the small one may have the larger."""
    pair = Pair("tickets", settings.large, "all_reduce", settings.small, "all_reduce")
    return _rows(settings, pair, "measured rates", settings.tickets, CASES["measured rates"])


def server(settings: Settings) -> list[Row]:
    """A push_pull of every worker beside a large push of each, to one server on the first host.

    Their packets meet in the switch. So it is measured once more, with the first tickets, where the
    switch schedules.
    """
    pair = Pair("server", settings.large_push, "push", settings.small, "push_pull")
    switched = replace(pair, has_switch=True)
    variable = CASES["measured rates"]
    rows = _rows(settings, pair, "one server", settings.tickets, variable)
    return rows + _rows(settings, switched, "the switch, too", settings.tickets[:1], variable)


@dataclass(frozen=True)
class Pair:
    """What is measured: bytes and names of the large and of the small operation.

    Attributes:
        has_switch: whether the switch schedules by tickets.
    """

    experiment: str
    large: int
    large_name: str
    small: int
    small_name: str
    has_switch: bool = False

    @property
    def has_server(self) -> bool:
        return self.large_name == "push"


def _rows(
    settings: Settings, pair: Pair, how: str, tickets: Sequence[tuple[int, int]], variable: str
) -> list[Row]:
    """Three for each of `tickets`, of the small operation and of the large one.

    A small operation that is not more urgent has no bar of its own.
    """
    found, stolen = _measure(settings, pair, tickets, variable)
    small = f"{pair.small_name} of {pair.small / 1e6:g} MB"
    large = f"{pair.large_name} of {pair.large / 1e6:g} MB"
    shared = {"experiment": pair.experiment, "wrong": found["wrong"]}
    rows = []
    for of_small, of_large in tickets:
        turn = _turn(of_small, of_large)
        case = f"{settings.flat}, {how}, tickets {of_small} and {of_large}"
        rows += [
            Row(
                case=f"{case}, {small} beside {large}",
                seconds=found[f"small_{turn}"],
                bound_s=found["small_alone"],
                most_of_bound=MOST_OF_TIME_ALONE if of_small < of_large else None,
                peer="the same ticket",
                peer_s=found["small_behind"],
                remark=disturbance.remark(stolen),
                **shared,
            ),
            Row(
                case=f"{case}, {large} beside {small}",
                seconds=found[f"large_{turn}"],
                bound_s=found["large_alone"] + found["small_alone"],
                most_of_bound=MOST_OF_LARGE,
                **shared,
            ),
            Row(
                case=f"{case}, both",
                seconds=found[f"both_{turn}"],
                bound_s=found["both_behind"],
                most_of_bound=MOST_OF_BOTH,
                **shared,
            ),
        ]
    return rows


def _turn(small: int, large: int) -> str:
    return f"{small}_{large}"


def _measure(
    settings: Settings, pair: Pair, tickets: Sequence[tuple[int, int]], variable: str
) -> tuple[dict, float]:
    """What `preempt_rank` prints, and the share of the cores' time that was not given."""
    together = {_turn(*both): both for both in tickets}
    case = {
        "large": pair.large,
        "small": pair.small,
        "delay_s": settings.delay_s,
        "rounds": settings.preempt_rounds,
        "together": together | {"behind": (DEFAULT_TICKET, DEFAULT_TICKET)},
        "with_server": pair.has_server,
    }
    with Lab(settings.flat, rate=RATE, options=Options(MTU)) as lab:
        command = [sys.executable, "-m", "benchmarks.prio.preempt_rank", json.dumps(case)]
        if pair.has_switch:
            schedule(lab, True)
        meter = CpuMeter()
        (found,) = measured_lines(lab, command, ["-e", variable])
        return found, meter.use().stolen
