"""Pulls rows of tables: some that the caller names, or all of them."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dmlcomm.ps.worker import tensors
from dmlcomm.ps.worker.layout import Memory
from dmlcomm.ps.worker.model import ClientModel
from dmlcomm.ps.worker.operations import Operations

Result = TypeVar("Result")

# Bound on the memory to pull a whole table, beside the table: rows arrive in memory of the core.
BATCH_BYTES = 64 << 20

# Of a row in that memory, beside its elements: its number, twice, and its place.
ROW_OVERHEAD_BYTES = 24


def pull_rows(
    operations: Operations,
    made: ClientModel,
    table: int,
    rows: Memory,
    address: int,
    staleness: int | None,
    finish: Callable[[], Result],
) -> Result:
    """Writes rows of a table to `address`, in the order of `rows`; what `finish` returns then.

    `finish` keeps the memory at `address`.
    """
    return operations.run(
        f'pull of rows of model "{made.name}"',
        lambda core, _: core.start_pull_rows(
            made.number, table, rows.address, rows.num_elements, address, staleness
        ),
        finish,
        rows,
    )


def pull_tables(operations: Operations, made: ClientModel, out: Any) -> Any:
    """All rows of all tables, as they are on the servers; `out` is written and returned.

    Pushes that come meanwhile may be in some batches of rows, and not in those before.
    """
    memory, finish = made.writable(out)

    def keep() -> object:
        # A batch that is given up may still be written to: the memory stays with it.
        return finish

    for table, ((address, _),) in enumerate(memory.addresses()):
        spec = made.layout.tensors[table]
        num_rows, row_elements = spec.shape
        row_bytes = row_elements * spec.element_bytes
        batch = max(1, BATCH_BYTES // (row_bytes + ROW_OVERHEAD_BYTES))
        for first in range(0, num_rows, batch):
            rows = tensors.indices_of(np.arange(first, min(first + batch, num_rows)))
            pull_rows(operations, made, table, rows, address + first * row_bytes, None, keep)
    return finish()
