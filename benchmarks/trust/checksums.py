"""What checksums of payloads cost over TCP."""

import statistics

import torch

from benchmarks.operations import Case
from benchmarks.ranks import Ranks
from benchmarks.row import Row

SIZE = 64 << 20
NUM_RANKS = 2
LEAST_SPEED = 0.9


def rows(quick: bool) -> list[Row]:
    """Medians of iterations, in turns with and without."""
    case = Case("all_reduce", SIZE, torch.float32, NUM_RANKS)
    environment = {"DMLCOMM_TRANSPORT": "tcp"}
    with (
        Ranks(NUM_RANKS, ["dmlcomm"], environment) as without,
        Ranks(NUM_RANKS, ["dmlcomm"], environment | {"DMLCOMM_CHECKSUM": "crc32c"}) as checked,
    ):
        both = {"without": without, "with": checked}
        seconds: dict[str, list[float]] = {name: [] for name in both}
        for turn in range(2 if quick else 10):
            for name in list(both)[:: 1 if turn % 2 else -1]:
                seconds[name] += both[name].measure("dmlcomm", case, warmup=3, iterations=15)
        wrong = {name: ranks.check("dmlcomm", case, seed=1) for name, ranks in both.items()}
    row = Row(
        "checksums",
        "crc32c, all_reduce of 64 MiB",
        statistics.median(seconds["with"]),
        least_speedup=LEAST_SPEED,
        wrong=wrong["with"],
    )
    return [row.beside("without", statistics.median(seconds["without"]), wrong["without"])]
