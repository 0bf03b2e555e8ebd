"""The time of a training step, by how its gradients are averaged."""

import json
import sys
from dataclasses import asdict, replace

from benchmarks.lab_run import all_reduce_bound_s, measured_lines
from benchmarks.operations import OPERATIONS
from benchmarks.prio.settings import MTU, RATE, TINY, TRANSFORMER, Settings
from benchmarks.prio.steps_rank import Options
from benchmarks.row import Row
from benchmarks.training.models import BACKWARD_PER_FORWARD, MODELS
from dmlcomm.lab import Lab
from dmlcomm.lab import Options as LabOptions
from dmlcomm.units import parse_rate

CONTESTANTS = ("alone", "ddp", "hook", "plain", "cross", "dear", "auto")
AUTO_CONTESTANTS = ("ddp", "plain", "auto")

# The bars: steps of "cross" beside DDP's and beside those of "dear".
LEAST_SPEEDUP = {"vgg19": 1 / 0.75, "resnet50": 1 / 0.9}
LEAST_SPEEDUP_TO_DEAR = 1.0
# Steps of "auto" beside those of DDP and of "plain".
LEAST_SPEEDUP_OF_AUTO = 1 / 1.01
# They hold where communication takes about as long as computing.
MOST_IMBALANCE = 0.1
HOST_RANKS = 2


def steps(settings: Settings) -> list[Row]:
    """In a replay computing takes as long as communication does in the lab of `RATE`."""
    rows = []
    for topology, rate in settings.labs:
        for model in settings.models:
            rows += rows_of(measure(settings, topology, rate, model))
    return rows


def measure(settings: Settings, topology: str, rate: str, model: str, traced: int = 0) -> dict:
    """What `steps_rank` has measured in a lab.

    Args:
        traced: see `Options`.

    Returns:
        Rank 0's result, with topology, rate, model, the time of the exchange that the network
        allows, and, if ``traced``, the timelines.
    """
    scale, compute_s = 1.0, 0.0
    with Lab(topology, rate=rate, options=LabOptions(mtu=MTU)) as lab:
        if model in MODELS:
            gradient_bytes = settings.gradient_mb * 1e6
            scale = gradient_bytes / MODELS[model]().gradient_bytes
            compute_s = _compute_s(gradient_bytes)
        options = _options(settings, model, CONTESTANTS, scale, compute_s)
        lines = measured_lines(lab, _command(replace(options, traced=traced)))
        (result,) = (line for line in lines if "seconds" in line)
        exchange_s = all_reduce_bound_s(lab.graph(), result["gradient_bytes"])
    result |= {"topology": topology, "rate": rate, "model": model, "exchange_s": exchange_s}
    return result | {"timelines": [line for line in lines if "timeline" in line]}


def _compute_s(gradient_bytes: float) -> float:
    """Of a step: as long as four hosts with one link of `RATE` exchange so many bytes."""
    return OPERATIONS["all_reduce"].wire_factor(4) * gradient_bytes * 8 / parse_rate(RATE)


def auto(settings: Settings) -> list[Row]:
    """Where no schedule can help: so little to send on one host, and a network that is fast."""
    short = replace(_options(settings, TINY, AUTO_CONTESTANTS, 1.0, 0.0), steps=settings.tiny_steps)
    on_one_host = replace(short, rounds=settings.tiny_rounds)
    real = _options(settings, TRANSFORMER, AUTO_CONTESTANTS, 1.0, 0.0)
    over_network = replace(real, rounds=settings.fast_rounds)
    return [
        *_auto(on_one_host, "flat:1,1", RATE, HOST_RANKS),
        *_auto(over_network, settings.fast, settings.fast_rate, 1),
    ]


def _auto(options: Options, topology: str, rate: str, host_ranks: int) -> list[Row]:
    with Lab(topology, rate=rate, options=LabOptions(mtu=MTU)) as lab:
        ranks = ("-m", str(host_ranks))
        (result,) = measured_lines(lab, _command(options), ranks, host_ranks)
    seconds = result["seconds"]
    place = "one host" if host_ranks > 1 else f"{topology} {rate}"
    return [
        Row(
            experiment="auto",
            case=f"{place}, {options.model}: auto beside {name}",
            seconds=seconds["auto"],
            peer=name,
            peer_s=seconds[name],
            least_speedup=LEAST_SPEEDUP_OF_AUTO,
            wrong=result["wrong"],
        )
        for name in AUTO_CONTESTANTS
        if name != "auto"
    ]


def _options(
    settings: Settings, model: str, contestants: tuple[str, ...], scale: float, compute_s: float
) -> Options:
    return Options(
        model,
        contestants,
        scale,
        compute_s,
        settings.warm_up,
        settings.trials,
        settings.rounds,
        settings.steps,
    )


def _command(options: Options) -> list[str]:
    return [sys.executable, "-m", "benchmarks.prio.steps_rank", json.dumps(asdict(options))]


def bounds_s(result: dict) -> dict[str, float]:
    """By contestant, the least time of a step.

    One that ends its communication in the step has to compute forward, and then the longer one of
    backward and communication. Across steps it is the longer one of all computing and of
    communication.
    """
    compute_s, exchange_s = result["seconds"]["alone"], result["exchange_s"]
    forward_s = compute_s / (1 + BACKWARD_PER_FORWARD)
    in_step_s = forward_s + max(compute_s - forward_s, exchange_s)
    in_step = dict.fromkeys(("ddp", "hook", "plain"), in_step_s)
    return dict.fromkeys(CONTESTANTS, max(compute_s, exchange_s)) | in_step


def rows_of(result: dict) -> list[Row]:
    seconds, model, bounds = result["seconds"], result["model"], bounds_s(result)
    compute_s, exchange_s = seconds["alone"], result["exchange_s"]
    case = f"{result['topology']} {result['rate']}, {model}"
    has_bars = abs(exchange_s / compute_s - 1) < MOST_IMBALANCE
    shared = {"experiment": "steps", "wrong": result["wrong"]}
    rows = [
        Row(
            case=f"{case}: {name}",
            seconds=seconds[name],
            bound_s=bounds[name],
            peer="DDP",
            peer_s=seconds["ddp"],
            least_speedup=LEAST_SPEEDUP.get(model) if name == "cross" and has_bars else None,
            remark=f"{compute_s * 1e3:.0f} ms are computed, {exchange_s * 1e3:.0f} ms exchanged"
            if name == "ddp"
            else "",
            **shared,
        )
        for name in CONTESTANTS
        if name != "alone"
    ]
    least = LEAST_SPEEDUP_TO_DEAR if model == "vgg19" and has_bars else None
    beside_dear = Row(
        case=f"{case}: cross beside dear",
        seconds=seconds["cross"],
        peer="dear",
        peer_s=seconds["dear"],
        least_speedup=least,
        **shared,
    )
    return [*rows, beside_dear]
