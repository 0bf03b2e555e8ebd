"""One training iteration as its events in time: when gradients are ready, and in which buckets."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.training.models import BYTES_PER_PARAMETER, Layer, Model

# As torch's DDP has them by default.
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Bucket:
    """Gradients that are synchronised together, ``ready_s`` after the iteration began."""

    elements: int
    ready_s: float


@dataclass(frozen=True)
class Plan:
    """An iteration of one worker: ``compute_s`` of it are forward and backward."""

    buckets: tuple[Bucket, ...]
    forward_s: float
    compute_s: float

    @property
    def gradient_bytes(self) -> int:
        return sum(bucket.elements for bucket in self.buckets) * BYTES_PER_PARAMETER


def plan(model: Model, batch: int, flops: float, scale: float, grouping: str = "buckets") -> Plan:
    """Backward goes through the layers from the last to the first; a bucket is ready with its last.

    Args:
        batch: samples per worker and iteration.
        flops: of a worker, per second.
        scale: of gradients and computing time alike; 1 is the model itself. Buckets keep their
            number: their limits are scaled, too.
        grouping: of gradients that are synchronised together: "buckets" as DDP makes them, or
            "layers", each for itself as in the BML paper, or "whole", all at the end.
    """
    seconds_per_flop = batch / flops * scale
    forward_s = sum(layer.forward_flops for layer in model.layers) * seconds_per_flop
    buckets = []
    now_s = forward_s
    for group in GROUPINGS[grouping](model.layers[::-1]):
        now_s += sum(layer.backward_flops for layer in group) * seconds_per_flop
        elements = sum(layer.parameters for layer in group)
        buckets.append(Bucket(max(1, round(elements * scale)), now_s))
    return Plan(tuple(buckets), forward_s, now_s)


def _buckets(layers: Sequence[Layer]) -> list[list[Layer]]:
    """DDP's rule: a bucket is closed by the layer with which it reaches its limit."""
    groups: list[list[Layer]] = [[]]
    filled, limit = 0, FIRST_BUCKET_BYTES
    for layer in layers:
        if filled >= limit:
            groups.append([])
            filled, limit = 0, BUCKET_BYTES
        groups[-1].append(layer)
        filled += layer.parameters * BYTES_PER_PARAMETER
    return groups


def _layers(layers: Sequence[Layer]) -> list[list[Layer]]:
    return [[layer] for layer in layers]


def _whole(layers: Sequence[Layer]) -> list[list[Layer]]:
    return [list(layers)]


GROUPINGS = {"buckets": _buckets, "layers": _layers, "whole": _whole}
