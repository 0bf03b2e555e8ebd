"""Plays the ways that ``dmlcomm strategy`` ranks in the lab, and compares the times of a step.

    python -m benchmarks.strategy --folder docs --page docs/strategy.md

Writes reproduction-strategy.json (JSON lines) to the folder and the table to the page, and prints
it. Of each kind of way the best one is played.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks import simulated
from benchmarks.simulated import Experiment, Record
from benchmarks.simulator.lab_play import play
from benchmarks.simulator.scenarios import MTU
from dmlcomm.simulate.push_pull import DIRECT
from dmlcomm.strategy import candidates
from dmlcomm.strategy.candidates import Outcome
from dmlcomm.strategy.request import Request, parse

# Four racks of four hosts, whose uplinks have an eighth of their hosts' rates; one bucket.
MODEL: dict[str, Any] = {
    "topology": "clos:1x4x4,1x1,r=8x1",
    "rate": "100mbit",
    "mtu": MTU,
    "layers": [{"size": "8MB"}],
    "num_servers": [1, 4],
}
ALGORITHMS = ("ring", "direct")
STEPS = 2


def ways() -> Iterator[Record]:
    request = parse(MODEL)
    outcomes = [candidates.play(request, one, 0) for one in candidates.candidates(request)]
    order = candidates.ranked(outcomes)
    for outcome in _best_of_each_kind(order):
        seconds, wrong = _in_the_lab(request, outcome)
        yield {
            "way": outcome.candidate.name,
            "servers": list(outcome.candidate.servers),
            "place": order.index(outcome) + 1,
            "expected_s": outcome.batch_s,
            "most_s": outcome.most_s,
            "links_s": outcome.links_s,
            "lab_s": seconds,
            "wrong": wrong,
        }


def _best_of_each_kind(order: list[Outcome]) -> list[Outcome]:
    """Some algorithms, and of each tree of proxies."""
    found: dict[str, Outcome] = {}
    for outcome in order:
        one = outcome.candidate
        if (one.servers and one.tree != DIRECT) or one.algorithm in ALGORITHMS:
            found.setdefault(one.algorithm or one.tree, outcome)
    return list(found.values())


def _in_the_lab(request: Request, outcome: Outcome) -> tuple[float, int]:
    """Seconds of a step, and how many elements were wrong."""
    scenario = candidates.scenario_of(request, outcome.candidate, is_of_links=True)
    (job,) = scenario["jobs"]
    (played,) = play(scenario | {"jobs": [job | {"steps": STEPS}]}).values()
    return played.seconds / STEPS, played.wrong


def table(records: list[Record]) -> Iterator[list[str]]:
    yield ["way", "hosts of servers", "links alone", "expected", "at most", "lab", "expected / lab"]
    for r in records:
        yield [
            r["way"],
            ", ".join(map(str, r["servers"])) or "-",
            *(f"{r[key]:.2f} s" for key in ("links_s", "expected_s", "most_s", "lab_s")),
            f"{r['expected_s'] / r['lab_s'] - 1:+.0%}",
        ]


EXPERIMENTS = {"ways": Experiment(ways, table)}


if __name__ == "__main__":
    simulated.main("strategy", EXPERIMENTS, __doc__.splitlines()[0])
