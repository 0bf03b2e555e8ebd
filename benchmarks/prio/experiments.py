"""The experiments: each is a function from settings to rows."""

from collections.abc import Callable

from benchmarks.prio.preempt import preempt, server, tickets
from benchmarks.prio.settings import Settings
from benchmarks.prio.steps import auto, steps
from benchmarks.prio.switch import switch
from benchmarks.row import Row

EXPERIMENTS: dict[str, Callable[[Settings], list[Row]]] = {
    "preempt": preempt,
    "tickets": tickets,
    "server": server,
    "steps": steps,
    "auto": auto,
    "switch": switch,
}
