"""Inputs whose reductions are exact in every element type, and what they must give."""

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOATS_8 = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [*INTEGERS, *FLOATS, *FLOATS_8, *COMPLEX, torch.bool]

Op = dist.ReduceOp
ARITHMETIC = [Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX]
BITWISE = [Op.BAND, Op.BOR, Op.BXOR]


def ops_of(dtype: torch.dtype) -> list:
    """The operators that are defined for `dtype`."""
    if dtype in COMPLEX:
        return [Op.SUM, Op.AVG]
    if dtype == torch.bool:
        return [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, *BITWISE]
    return [*ARITHMETIC, *BITWISE] if dtype in INTEGERS else ARITHMETIC


def counts_of(world_size: int) -> list[int]:
    """Nothing, one, around the number of ranks, odd, and more than one segment."""
    return sorted({0, 1, world_size - 1, world_size, world_size + 1, 63, 1001, 10_007})


def cases_of(world_size: int) -> list[tuple[torch.dtype, int]]:
    """Every element type, and with one of them every count."""
    cases = [(torch.float32, count) for count in counts_of(world_size)]
    others = [dtype for dtype in DTYPES if dtype != torch.float32]
    return cases + [(dtype, count) for dtype in others for count in (world_size + 1, 1001)]


def roots_of(world_size: int) -> list[int]:
    """The first, a middle and the last rank."""
    return sorted({0, world_size // 2, world_size - 1})


@functools.cache
def exact(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The input of `rank`: small integers, as int64 (or complex128). Float8 has room for few."""
    steps = torch.arange(count, dtype=torch.int64) * 7 + rank * 3
    if dtype == torch.bool:
        return (steps % 3 == 0).to(torch.int64)
    values = 1 + steps % (1 if dtype == torch.float8_e5m2 else 2)
    return torch.complex(values.double(), -values.double()) if dtype in COMPLEX else values


def value(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return exact(rank, count, dtype).to(dtype, copy=True)


def reduced(op: dist.ReduceOp, world_size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What reducing every rank's value() must give; not to be changed."""
    return _reduced(op.name, world_size, count, dtype)


@functools.cache
def _reduced(name: str, world_size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    op = Op.RedOpType.__members__[name]
    inputs = [exact(rank, count, dtype) for rank in range(world_size)]
    if op == Op.AVG:
        total = functools.reduce(torch.add, inputs)
        if dtype in INTEGERS:
            return (total // world_size).to(dtype)
        return (total if dtype in COMPLEX else total.double()).div(world_size).to(dtype)
    if dtype == torch.bool:
        op = {Op.SUM: Op.BOR, Op.PRODUCT: Op.BAND}.get(op, op)
    return functools.reduce(_FUNCTIONS[op], inputs).to(dtype)


_FUNCTIONS: dict[dist.ReduceOp, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Op.SUM: torch.add,
    Op.PRODUCT: torch.mul,
    Op.MIN: torch.minimum,
    Op.MAX: torch.maximum,
    Op.BAND: torch.bitwise_and,
    Op.BOR: torch.bitwise_or,
    Op.BXOR: torch.bitwise_xor,
}


class Expectations:
    """Collects what differs, so that a rank goes on with the collectives the others expect."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def equal(self, actual: torch.Tensor, expected: torch.Tensor, *what: object) -> None:
        if actual.shape == expected.shape and actual.dtype == expected.dtype:
            if _bits_equal(actual, expected):
                return
            if actual.is_floating_point() or actual.is_complex():
                error = (actual.to(torch.complex128) - expected.to(torch.complex128)).abs().max()
                size = expected.to(torch.complex128).abs().max()
                if error <= 2 * torch.finfo(actual.dtype).eps * size:
                    return
        shown = f"{actual.flatten()[:8].tolist()} instead of {expected.flatten()[:8].tolist()}"
        self.failures.append(f"{' '.join(map(str, what))}: {shown}")

    def true(self, condition: bool, *what: object) -> None:
        if not condition:
            self.failures.append(" ".join(map(str, what)))

    def check(self) -> None:
        assert not self.failures, "\n".join(self.failures[:10])


def _bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype in FLOATS_8:
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    return torch.equal(a, b)
