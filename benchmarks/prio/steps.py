"""The time of a training step, by how its gradients are averaged."""

import json
import sys
from dataclasses import asdict, replace

from benchmarks.lab_run import all_reduce_bound_s, measured_lines
from benchmarks.prio.settings import MTU, RATE, TINY, Settings
from benchmarks.prio.steps_rank import Options
from benchmarks.row import Row
from benchmarks.training.models import BACKWARD_PER_FORWARD, MODELS
from dmlcomm.lab import Lab
from dmlcomm.lab import Options as LabOptions

CONTESTANTS = ("alone", "ddp", "hook", "plain", "cross", "dear", "auto")

# The bars: steps of "cross" beside those of DDP and of "dear", and of "auto" beside "plain".
LEAST_SPEEDUP = {"vgg19": 1 / 0.75, "resnet50": 1 / 0.9}
LEAST_SPEEDUP_TO_DEAR = 1.0
LEAST_SPEEDUP_OF_AUTO = 1 / 1.01
HOST_RANKS = 2


def steps(settings: Settings) -> list[Row]:
    """Computing and communication take as long as each other, in a replay.

    The bound of one that ends its communication in the step is that of DDP: forward, and the longer
    one of backward and communication. Across steps it is the longer one of all computing and
    communication.
    """
    rows = []
    for model in settings.models:
        with Lab(settings.flat, rate=RATE, options=LabOptions(mtu=MTU)) as lab:
            scale, compute_s = 1.0, 0.0
            if model in MODELS:
                gradient_bytes = settings.gradient_mb * 1e6
                scale = gradient_bytes / MODELS[model]().gradient_bytes
                compute_s = all_reduce_bound_s(lab.graph(), round(gradient_bytes)) or 0.0
            options = _options(settings, model, CONTESTANTS, scale, compute_s)
            (result,) = measured_lines(lab, _command(options))
            exchange_s = all_reduce_bound_s(lab.graph(), result["gradient_bytes"]) or 0.0
        rows += _rows(f"{settings.flat}, {model}", model, result, exchange_s)
    return rows


def auto_on_one_host(settings: Settings) -> list[Row]:
    """Two ranks on one host, and so little to send that no schedule can help."""
    options = _options(settings, TINY, ("ddp", "plain", "auto"), 1.0, 0.0)
    options = replace(options, rounds=settings.tiny_rounds, steps=settings.tiny_steps)
    with Lab("flat:1,1", rate=RATE, options=LabOptions(mtu=MTU)) as lab:
        ranks = ("-m", str(HOST_RANKS))
        (result,) = measured_lines(lab, _command(options), ranks, HOST_RANKS)
    seconds = result["seconds"]
    return [
        Row(
            experiment="auto",
            case=f"one host, {TINY}: auto beside {name}",
            seconds=seconds["auto"],
            peer=name,
            peer_s=seconds[name],
            least_speedup=LEAST_SPEEDUP_OF_AUTO,
            wrong=result["wrong"],
        )
        for name in ("plain", "ddp")
    ]


def _options(
    settings: Settings, model: str, contestants: tuple[str, ...], scale: float, compute_s: float
) -> Options:
    return Options(
        model, contestants, scale, compute_s, settings.warm_up, settings.rounds, settings.steps
    )


def _command(options: Options) -> list[str]:
    return [sys.executable, "-m", "benchmarks.prio.steps_rank", json.dumps(asdict(options))]


def _rows(case: str, model: str, result: dict, exchange_s: float) -> list[Row]:
    seconds = result["seconds"]
    compute_s = seconds["alone"]
    forward_s = compute_s / (1 + BACKWARD_PER_FORWARD)
    in_step_s = forward_s + max(compute_s - forward_s, exchange_s)
    across_s = max(compute_s, exchange_s)
    bounds = {"ddp": in_step_s, "hook": in_step_s, "plain": in_step_s}
    shared = {"experiment": "steps", "wrong": result["wrong"]}
    rows = [
        Row(
            case=f"{case}: {name}",
            seconds=seconds[name],
            bound_s=bounds.get(name, across_s),
            peer="DDP",
            peer_s=seconds["ddp"],
            least_speedup=LEAST_SPEEDUP.get(model) if name == "cross" else None,
            remark=f"{compute_s * 1e3:.0f} ms are computed, {exchange_s * 1e3:.0f} ms exchanged"
            if name == "ddp"
            else "",
            **shared,
        )
        for name in CONTESTANTS
        if name != "alone"
    ]
    least = LEAST_SPEEDUP_TO_DEAR if model == "vgg19" else None
    beside_dear = Row(
        case=f"{case}: cross beside dear",
        seconds=seconds["cross"],
        peer="dear",
        peer_s=seconds["dear"],
        least_speedup=least,
        **shared,
    )
    return [*rows, beside_dear]
