"""How much ``benchmarks.prio`` measures."""

from dataclasses import dataclass

RATE = "200mbit"
MTU = 9000
# Real ones; the others are replays.
TRANSFORMER, TINY = "transformer", "tiny"


@dataclass(frozen=True)
class Settings:
    """Topologies, models, and how long.

    Attributes:
        flat: topology of the training, and of `preempt`.
        large, small: bytes of the all_reduce that runs in `preempt`, and of the urgent one.
        delay_s: from the call of the large one to that of the urgent one.
        preempt_rounds: that count; one more goes before.
        models: whose steps are measured.
        gradient_mb: of a replay; the model is scaled to that.
        warm_up: steps of each contestant before; "auto" makes its trials in them.
        rounds: in each of which every contestant has its turn.
        steps: of a turn; the first one is not counted.
        tiny_steps, tiny_rounds: of a model whose steps take milliseconds.
        switch_rounds: of the TensorExpress paper's table, in each of which all have their turn.
    """

    flat: str
    large: int
    small: int
    delay_s: float
    preempt_rounds: int
    models: tuple[str, ...]
    gradient_mb: float
    warm_up: int
    rounds: int
    steps: int
    tiny_rounds: int
    tiny_steps: int
    switch_rounds: int


FULL = Settings(
    flat="flat:4,1",
    large=100_000_000,
    small=1_000_000,
    delay_s=0.2,
    preempt_rounds=3,
    models=("vgg19", "vgg16", "resnet50", TRANSFORMER),
    gradient_mb=6.0,
    warm_up=36,
    rounds=4,
    steps=6,
    tiny_rounds=40,
    tiny_steps=40,
    switch_rounds=7,
)

QUICK = Settings(
    flat="flat:2,1",
    large=5_000_000,
    small=100_000,
    delay_s=0.05,
    preempt_rounds=1,
    models=("vgg19",),
    gradient_mb=0.5,
    warm_up=34,
    rounds=1,
    steps=3,
    tiny_rounds=2,
    tiny_steps=5,
    switch_rounds=1,
)
