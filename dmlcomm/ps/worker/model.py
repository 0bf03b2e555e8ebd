"""A model as a client knows it: names, shapes, and the memory of the caller's tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dmlcomm import _core
from dmlcomm.ps.protocol import model_number
from dmlcomm.ps.worker import tensors
from dmlcomm.ps.worker.layout import (
    Layout,
    Memory,
    Structure,
    TensorSpec,
    dense_layout,
    describe_model,
    structure_of,
    table_layout,
)


@dataclass(frozen=True)
class ClientModel:
    """See `make_model`. Either all tensors are tables or none is.

    Attributes:
        like: an empty tensor for each, of which a pull makes more.
        arrays: the usual case of operations; None where the elements are no type of NumPy's.
    """

    number: int
    name: str
    structure: Structure
    layout: Layout
    description: Any
    like: tuple[Any, ...]
    arrays: _core.PsArrays | None
    is_tables: bool

    def expect_dense(self, what: str) -> None:
        """Raises ValueError for tables: the servers leave them out of what is not about rows."""
        if self.is_tables:
            raise ValueError(
                f"{what}: expected a model of dense tensors, and it was made with tables=True; use "
                f"push_rows and pull_rows, which say which rows"
            )

    def expect_table(self, table: int, what: str) -> None:
        """Raises ValueError unless the model has this table."""
        if not self.is_tables:
            raise ValueError(
                f"{what}: expected a model of tables, and it was made of dense tensors; use push "
                f"and pull, or make it by init(..., tables=True)"
            )
        num_tables = len(self.layout.tensors)
        if not 0 <= table < num_tables:
            expected = "0, its only one" if num_tables == 1 else f"0 to {num_tables - 1}"
            raise ValueError(
                f"{what}: got table {table}, expected {expected}; tables count in the order of init"
            )

    def readable(self, value: Any) -> tuple[_core.PsMemory, Any]:
        """Memory of tensors that are to be sent, and its owner.

        Raises ValueError if they are not this model's.
        """
        leaves = self._leaves(value)
        if memory := self._in_place(leaves, False):
            return memory, leaves
        self._expect(leaves)
        memories = [tensors.readable(leaf) for leaf in leaves]
        return self.layout.memory_of(memories), memories

    def writable(self, out: Any) -> tuple[_core.PsMemory, Callable[[], Any]]:
        """Memory to receive into, and what then returns the tensors. None: new ones."""
        if out is None:
            specs = zip(self.like, self.layout.tensors, strict=True)
            leaves = [tensors.empty(like, spec.shape) for like, spec in specs]
        else:
            leaves = self._leaves(out)
        if memory := self._in_place(leaves, True):
            return memory, lambda: self.structure.rebuild(leaves)
        self._expect(leaves)
        targets = [tensors.writable(leaf) for leaf in leaves]

        def finish() -> Any:
            return self.structure.rebuild([write() for _, write in targets])

        return self.layout.memory_of([memory for memory, _ in targets]), finish

    def row_memory(self, table: int, rows: Memory, values: Any) -> Memory:
        """Memory of the values of rows. Raises ValueError for another shape or element type."""
        what = f'rows of model "{self.name}"'
        spec, actual = self.layout.tensors[table], tensors.spec_of(values, what)
        expected = TensorSpec((rows.num_elements, spec.shape[-1]), spec.dtype)
        if actual != expected:
            raise ValueError(f"{what}: expected {expected}, got {actual}")
        return tensors.readable(values)

    def _leaves(self, value: Any) -> list[Any]:
        return self.structure.flatten(value, f'model "{self.name}"')

    def _in_place(self, leaves: list[Any], writable: bool) -> _core.PsMemory | None:
        return None if self.arrays is None else self.arrays.memory_of(leaves, writable)

    def _expect(self, leaves: list[Any]) -> None:
        what = f'model "{self.name}"'
        for key, spec, leaf in zip(self.structure.keys, self.layout.tensors, leaves, strict=True):
            actual = tensors.spec_of(leaf, f"{what}, tensor {key}")
            if actual != spec:
                raise ValueError(f"{what}, tensor {key}: expected {spec}, got {actual}")


def make_model(
    name: str,
    weights: Any,
    *,
    wire: str,
    tables: bool,
    options: Mapping[str, float],
    **fields: Any,
) -> ClientModel:
    """`fields` are those of the message Model. Raises TypeError, ValueError."""
    what = f'model "{name}"'
    structure = structure_of(weights)
    leaves = structure.flatten(weights, what)
    if not leaves:
        raise ValueError(f"{what} has no tensors")
    specs = [
        tensors.spec_of(leaf, f"{what}, tensor {key}")
        for key, leaf in zip(structure.keys, leaves, strict=True)
    ]
    if tables and wire:
        raise ValueError(f"{what}: rows of tables travel as they are; leave out wire={wire!r}")
    layout = table_layout(specs) if tables else dense_layout(specs)
    description = describe_model(name, structure, layout, wire, options, **fields)
    return ClientModel(
        number=model_number(name),
        name=name,
        structure=structure,
        layout=layout,
        description=description,
        like=tuple(tensors.empty(leaf, (0,)) for leaf in leaves),
        arrays=tensors.arrays_of(layout),
        is_tables=tables,
    )
