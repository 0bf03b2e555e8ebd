"""How much ``benchmarks.prio`` measures."""

import argparse
from dataclasses import dataclass, replace

from benchmarks.arguments import comma_list
from dmlcomm.prio.ticket import check_ticket

RATE = "200mbit"
MTU = 9000
# Real ones; the others are replays.
DEMO, TRANSFORMER, TINY = "demo", "transformer", "tiny"
MODELS_OF_STEPS = ("vgg19", "vgg16", "resnet50", TRANSFORMER, DEMO)


@dataclass(frozen=True)
class Settings:
    """Topologies, models, and how long.

    Attributes:
        flat: topology of `preempt`, `tickets` and `server`.
        large, small: bytes of the all_reduce that runs in `preempt`, and of the urgent one.
        large_push: bytes of the push that runs in `server`, of each worker.
        tickets: of the small and of the large operation in `tickets` and `server`.
        delay_s: from the call of the large one to that of the urgent one.
        preempt_rounds: that count; one more goes before.
        labs: topology and rate of a link, in each of which steps are measured.
        models: whose steps are measured.
        gradient_mb: of a replay; the model is scaled to that. With 12 MB VGG-19 is a 48th of
            itself, and 200 Mb/s are a 50th of 10 Gb/s: a step takes as long as there.
        warm_up: steps of each contestant before: rates that are measured count after 256 operations
            where tickets are given.
        trials: the same of "auto", which makes its trials in them.
        rounds: in each of which every contestant has its turn.
        steps: of a turn; the first one is not counted.
        tiny_steps, tiny_rounds: of a model whose steps take milliseconds.
        fast, fast_rate: topology and rate of the network of `auto` that is faster than computing.
        fast_rounds: there; 1 % is to be told.
        switch_rounds: of the TensorExpress paper's table, in each of which all have their turn.
    """

    flat: str
    large: int
    small: int
    large_push: int
    tickets: tuple[tuple[int, int], ...]
    delay_s: float
    preempt_rounds: int
    labs: tuple[tuple[str, str], ...]
    models: tuple[str, ...]
    gradient_mb: float
    warm_up: int
    trials: int
    rounds: int
    steps: int
    tiny_rounds: int
    tiny_steps: int
    fast: str
    fast_rate: str
    fast_rounds: int
    switch_rounds: int


FULL = Settings(
    flat="flat:4,1",
    large=100_000_000,
    small=1_000_000,
    large_push=50_000_000,
    tickets=((0, 128), (3, 200), (255, 0)),
    delay_s=0.2,
    preempt_rounds=3,
    labs=(("flat:4,1", RATE),),
    models=MODELS_OF_STEPS,
    gradient_mb=12.0,
    warm_up=18,
    trials=94,
    rounds=3,
    steps=6,
    tiny_rounds=40,
    tiny_steps=40,
    fast="flat:2,1",
    fast_rate="10gbit",
    fast_rounds=20,
    switch_rounds=7,
)

QUICK = Settings(
    flat="flat:2,1",
    large=5_000_000,
    small=100_000,
    large_push=5_000_000,
    tickets=((3, 200),),
    delay_s=0.05,
    preempt_rounds=1,
    labs=(("flat:2,1", RATE),),
    models=("vgg19",),
    gradient_mb=0.5,
    warm_up=10,
    trials=94,
    rounds=1,
    steps=3,
    tiny_rounds=2,
    tiny_steps=5,
    fast="flat:2,1",
    fast_rate="10gbit",
    fast_rounds=1,
    switch_rounds=1,
)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Options that choose what is measured of some experiments; `parser` has ``--quick``."""
    models = comma_list(FULL.models, "model")
    parser.add_argument("--models", type=models, help="of steps: a comma list")
    lab = {"nargs": 2, "action": "append", "metavar": ("TOPOLOGY", "RATE")}
    parser.add_argument("--lab", **lab, help="of steps; may be repeated")
    both = {"nargs": 2, "type": int, "action": "append", "metavar": ("SMALL", "LARGE")}
    parser.add_argument("--ticket", **both, help="of tickets and server; may be repeated")


def chosen(options: argparse.Namespace) -> Settings:
    """By the options of a parser that has those of `add_choice`."""
    settings = QUICK if options.quick else FULL
    if options.models:
        settings = replace(settings, models=tuple(options.models))
    if options.lab:
        settings = replace(settings, labs=tuple(map(tuple, options.lab)))
    if options.ticket:
        settings = replace(settings, tickets=tuple(_checked(*both) for both in options.ticket))
    return settings


def _checked(small: int, large: int) -> tuple[int, int]:
    try:
        return check_ticket(small), check_ticket(large)
    except ValueError as error:
        raise SystemExit(f"--ticket: {error}") from None
