"""The time that communication adds to a step, by hook."""

import sys

from benchmarks.hooks.settings import MODEL, PLAIN, RATE, Settings
from benchmarks.lab_run import all_reduce_bound_s, measured_lines
from benchmarks.row import Row
from benchmarks.training.models import BYTES_PER_PARAMETER
from dmlcomm import _core
from dmlcomm.lab import Lab

# The bar: beside DDP without a hook.
LEAST_SPEEDUP = {"int8": 3.0, "fp8": 3.0}
_CODED = _core.quantized_bytes(_core.QUANTIZED_BLOCK) / _core.QUANTIZED_BLOCK
BYTES_PER_NUMBER = {PLAIN: 4.0, "bf16": 2.0, "int8": _CODED, "fp8": _CODED}


def communication(settings: Settings) -> list[Row]:
    """All contestants in the same processes, in turns."""
    command = [sys.executable, "-m", "benchmarks.hooks.rank"]
    command += [str(settings.gradient_mb), str(settings.rounds)]
    with Lab(settings.topology, rate=RATE) as lab:
        (result,) = measured_lines(lab, command)
        bound_s = all_reduce_bound_s(lab.graph(), result["gradient_bytes"])
    seconds = result["seconds"]
    return [
        Row(
            experiment="communication",
            case=f"{settings.topology} {RATE}, {MODEL}: {name}",
            seconds=seconds[name],
            bound_s=bound_s * size / BYTES_PER_PARAMETER,
            peer="DDP",
            peer_s=seconds[PLAIN],
            least_speedup=LEAST_SPEEDUP.get(name),
            wrong=result["wrong"][name],
        )
        for name, size in BYTES_PER_NUMBER.items()
    ]
