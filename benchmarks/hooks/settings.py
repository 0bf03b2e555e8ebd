"""How much ``benchmarks.hooks`` measures."""

from dataclasses import dataclass

RATE = "200mbit"
MODEL = "vgg16"
PLAIN = "none"  # DDP without a hook


@dataclass(frozen=True)
class Settings:
    """Sizes, and how often.

    Attributes:
        topology: of the lab.
        gradient_mb: of the model, which is scaled to that, with its buckets.
        rounds: that count, in each of which every contestant makes a step; two more go before.
        hooks: keys of the demo's HOOKS whose accuracy is compared.
        ranks: that train the demo's model on this host.
        epochs: of its training.
        seeds: of trainings whose mean accuracy counts.
        timed_blocks: of steps, after each training.
    """

    topology: str
    gradient_mb: float
    rounds: int
    hooks: tuple[str, ...]
    ranks: int
    epochs: int
    seeds: tuple[int, ...]
    timed_blocks: int


FULL = Settings(
    topology="flat:4,1",
    gradient_mb=55.0,
    rounds=7,
    hooks=("bf16", "int8", "fp8"),
    ranks=4,
    epochs=12,
    seeds=(7, 8, 9),
    timed_blocks=8,
)
QUICK = Settings(
    topology="flat:2,1",
    gradient_mb=2.0,
    rounds=2,
    hooks=("int8",),
    ranks=2,
    epochs=1,
    seeds=(7,),
    timed_blocks=1,
)
