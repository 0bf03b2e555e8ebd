"""What traces of torch's profiler have of operations and of NICs."""

import gzip
import json
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]

# The clocks of profiler and rails are read apart: half a millisecond for that.
_APART_US = 500


def rows_and_operations(path: str) -> tuple[dict[str, list[Event]], list[Event]]:
    """Ranges of NICs by row ("eth0 out"), and those of operations, of a file that has both."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = [e for e in events if e["name"] == "thread_name"]
    rows: dict[str, list[Event]] = {}
    for name in (e for e in names if e["args"]["name"].startswith("dmlcomm ")):
        found = [e for e in events if e.get("cat") == "dmlcomm" and e["tid"] == name["tid"]]
        rows[name["args"]["name"].removeprefix("dmlcomm ")] = found
    return rows, [e for e in events if e["name"].startswith("dmlcomm:")]


def expect_within(outer: Event, ranges: Iterable[Event]) -> None:
    for inner in ranges:
        assert inner["ts"] > outer["ts"] - _APART_US, (inner, outer)
        assert inner["ts"] + inner["dur"] < outer["ts"] + outer["dur"] + _APART_US, (inner, outer)
