"""The accuracy of the demo's model, by hook."""

import statistics
import tempfile
from pathlib import Path

from benchmarks.hooks.settings import PLAIN, Settings
from benchmarks.row import Row
from examples.demo import run_training

# The bar: below DDP without a hook.
MOST_POINTS_LOST = {"int8": 0.5, "fp8": 0.5}


def accuracy(settings: Settings) -> list[Row]:
    """The mean over seeds, of trainings with the same data and first weights."""
    found = {name: _trained(name, settings) for name in (PLAIN, *settings.hooks)}
    return [
        Row(
            experiment="accuracy",
            case=f"LeNet-5, {settings.ranks} ranks: {name}",
            seconds=step_s,
            peer="DDP",
            peer_s=found[PLAIN][0],
            points_lost=100 * (found[PLAIN][1] - mean),
            most_points_lost=MOST_POINTS_LOST.get(name),
            remark=f"accuracy {mean:.2%}",
        )
        for name, (step_s, mean) in found.items()
    ]


def _trained(hook: str, settings: Settings) -> tuple[float, float]:
    """Seconds of a step, and the test accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        results = [
            run_training(
                *("dmlcomm", settings.ranks, settings.epochs, Path(folder)),
                *("--hook", hook, "--seed", str(seed)),
                *("--timed-blocks", str(settings.timed_blocks)),
            )
            for seed in settings.seeds
        ]
    accuracies = [result["history"][-1]["accuracy"] for result in results]
    steps_ms = [result["step_ms"] for result in results]
    return statistics.median(steps_ms) / 1e3, statistics.mean(accuracies)
