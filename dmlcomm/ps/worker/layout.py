"""How a model's tensors become spaces, and a caller's structure of tensors a flat list. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dmlcomm import _core
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.description import element_bytes

SINGLE = "single"
LIST = "list"
DICT = "dict"

# The core's names of element types.
DTYPES = {
    "uint8": "u8",
    "int8": "i8",
    "uint16": "u16",
    "int16": "i16",
    "uint32": "u32",
    "int32": "i32",
    "uint64": "u64",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",  # of the package ml_dtypes
    "float32": "f32",
    "float64": "f64",
}


@dataclass(frozen=True)
class Structure:
    """The structure of the caller's weights: one tensor, a list of them, or a dict."""

    kind: str
    keys: tuple[str, ...]

    def flatten(self, value: Any, what: str) -> list[Any]:
        """The tensors of `value`, in the order of `keys`. Raises ValueError if it is another one.

        A dict may have its keys in any order.
        """
        kind = kind_of(value)
        if self.kind != kind or (kind != SINGLE and len(self.keys) != len(value)):
            raise ValueError(f"{what}: expected {self}, got {structure_of(value)}")
        if kind == SINGLE:
            return [value]
        if kind == LIST:
            return list(value)
        try:
            return [value[key] for key in self.keys]
        except KeyError as error:
            raise ValueError(
                f"{what}: expected {self}, got {structure_of(value)}: {error} is missing"
            ) from None

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        if self.kind == SINGLE:
            return tensors[0]
        return dict(zip(self.keys, tensors, strict=True)) if self.kind == DICT else list(tensors)

    def __str__(self) -> str:
        if self.kind == SINGLE:
            return "one tensor"
        return f"a {self.kind} of {len(self.keys)} tensors"


def kind_of(value: Any) -> str:
    # The questions in the order of what they cost: asking for a Mapping takes half a microsecond.
    if isinstance(value, (list, tuple)):
        return LIST
    if isinstance(value, dict):
        return DICT
    return DICT if not hasattr(value, "dtype") and isinstance(value, Mapping) else SINGLE


def structure_of(value: Any) -> Structure:
    kind = kind_of(value)
    if kind == DICT:
        return Structure(DICT, tuple(map(str, value)))
    if kind == LIST:
        return Structure(LIST, tuple(map(str, range(len(value)))))
    return Structure(SINGLE, ("0",))


@dataclass(frozen=True)
class TensorSpec:
    """Shape and element type of one tensor; `dtype` is a name of the core, as "f32"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        return element_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Memory(NamedTuple):
    """The place of one tensor's elements; `owner` keeps them there."""

    address: int
    num_elements: int
    owner: Any


@dataclass(frozen=True)
class Layout:
    """Which tensor is in which space.

    All dense tensors of one element type form a space, in their order; a table is one by itself.

    Attributes:
        tensors: of the model, in order.
        space_of: number of the space, by tensor.
        spaces: (element type, elements, elements per row or 0), by space.
    """

    tensors: tuple[TensorSpec, ...]
    space_of: tuple[int, ...]
    spaces: tuple[tuple[str, int, int], ...]

    def memory_of(self, memories: Sequence[Memory]) -> _core.PsMemory:
        buffers: list[list[tuple[int, int]]] = [[] for _ in self.spaces]
        for space, memory in zip(self.space_of, memories, strict=True):
            if memory.num_elements:
                buffers[space].append((memory.address, memory.num_elements))
        return _core.PsMemory(buffers)


def dense_layout(tensors: Sequence[TensorSpec]) -> Layout:
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors))
    counts = {dtype: sum(t.count for t in tensors if t.dtype == dtype) for dtype in dtypes}
    return Layout(
        tensors=tuple(tensors),
        space_of=tuple(dtypes.index(tensor.dtype) for tensor in tensors),
        spaces=tuple((dtype, counts[dtype], 0) for dtype in dtypes),
    )


def table_layout(tensors: Sequence[TensorSpec]) -> Layout:
    """Every tensor is a table, whose rows are pushed and pulled singly. Raises ValueError."""
    for tensor in tensors:
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise ValueError(f"a table: expected a matrix with rows and columns, got {tensor}")
    return Layout(
        tensors=tuple(tensors),
        space_of=tuple(range(len(tensors))),
        spaces=tuple((t.dtype, t.count, t.shape[1]) for t in tensors),
    )


def describe_model(
    name: str,
    structure: Structure,
    layout: Layout,
    wire: str,
    options: Mapping[str, float],
    **fields: Any,
) -> Any:
    """The model as a message. `wire` is for the spaces of f32, which alone can be narrowed."""
    return pb.Model(
        name=name,
        spaces=[
            pb.Space(
                dtype=dtype,
                count=count,
                row_elements=row_elements,
                wire=wire if dtype == "f32" else "",
            )
            for dtype, count, row_elements in layout.spaces
        ],
        tensors=[
            pb.Tensor(key=key, shape=tensor.shape, dtype=tensor.dtype)
            for key, tensor in zip(structure.keys, layout.tensors, strict=True)
        ],
        options={key: float(value) for key, value in options.items()},
        **fields,
    )
