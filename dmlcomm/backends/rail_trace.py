"""Ranges of NICs beside those of torch's profiler, in one trace."""

import gzip
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Rows of a trace are threads with numbers; these are no threads.
_FIRST_ROW = 1 << 22


class trace_rails:  # noqa: N801 - used like a function
    """A block in which is remembered when the bytes of each operation passed over each NIC.

    `add_to` then adds rows "dmlcomm eth0 out", "dmlcomm eth0 in" and so on to a trace of
    torch.profiler. A range is one collective, or one message between two ranks, on one NIC, in one
    direction, from the first to the last bytes that passed between this process and the kernel;
    its arguments are their number and the operation's. "local" is messages to processes of this
    host; what these read from each other's memory by themselves is not there. Blocks are not
    nested, and count for all groups.

    Example:
        >>> with dmlcomm.trace_rails() as rails, torch.profiler.profile() as profiler:
        ...     train(batch)
        >>> profiler.export_chrome_trace("trace.json")
        >>> rails.add_to("trace.json")
    """

    def __enter__(self) -> Self:
        from dmlcomm import _c10d

        self._ranges: list[dict[str, Any]] = []
        _c10d.start_rail_trace()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from dmlcomm import _c10d

        self._ranges = _c10d.stop_rail_trace()
        self._ns_since_1970 = time.time_ns() - time.monotonic_ns()

    def add_to(self, path: str | os.PathLike[str]) -> None:
        """Adds the rows to a file of ``export_chrome_trace``, after the block.

        Args:
            path: the file, which may be compressed (.gz).

        Raises:
            ValueError: it is no such trace.
        """
        path = Path(path)
        open_as = gzip.open if path.suffix == ".gz" else open
        with open_as(path, "rt") as file:
            trace = json.load(file)
        if "traceEvents" not in trace or "baseTimeNanoseconds" not in trace:
            raise ValueError(
                f"{path} is no trace of torch.profiler: expected traceEvents and a time"
            )
        offset_ns = self._ns_since_1970 - trace["baseTimeNanoseconds"]
        trace["traceEvents"] += self._events(offset_ns)
        with open_as(path, "wt") as file:
            json.dump(trace, file)

    def _events(self, offset_ns: int) -> list[dict[str, Any]]:
        names = sorted({_row_of(found) for found in self._ranges})
        rows = {name: _FIRST_ROW + place for place, name in enumerate(names)}
        process = os.getpid()
        titles = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": {"name": name}}
            for name, row in rows.items()
        ]
        ranges = [
            {
                "ph": "X",
                "cat": "dmlcomm",
                "name": f"{found['operation']} #{found['sequence']}",
                "pid": process,
                "tid": rows[_row_of(found)],
                "ts": (found["begin_ns"] + offset_ns) / 1e3,
                "dur": (found["end_ns"] - found["begin_ns"]) / 1e3,
                "args": {"bytes": found["bytes"], "group": found["group"]},
            }
            for found in self._ranges
        ]
        return titles + ranges


def _row_of(found: dict[str, Any]) -> str:
    return f"dmlcomm {found['interface']} {'out' if found['is_sent'] else 'in'}"
