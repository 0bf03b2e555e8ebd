"""What ``dmlcomm proxy status`` and ``draw`` print."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dmlcomm.ps import tree
from dmlcomm.units import format_bytes

Values = dict[str, Any]

NO_JOB = "no job is attached"
WAITS = "waits for all workers of the job"


def status(answer: Values) -> list[str]:
    """Lines of a proxy's answer."""
    lines = [*_of_trees(answer["jobs"]), *_of_shares(answer["priorities"])]
    return lines or [NO_JOB]


def branches(
    parents: Sequence[int], label: Callable[[int], str], node: int = tree.ROOT, indent: str = ""
) -> Iterator[str]:
    """All below `node`, a line each."""
    children = tree.children_of(parents, node)
    for child in children:
        is_last = child == children[-1]
        yield f"{indent}{'`-- ' if is_last else '|-- '}{label(child)}"
        yield from branches(parents, label, child, indent + ("    " if is_last else "|   "))


def running_trees(answer: Values) -> list[str]:
    """The trees that the proxy is in, those of all servers of its jobs."""
    lines = []
    for number, job in enumerate(answer["jobs"]):
        for node in job["nodes"]:
            server = f"job {number}, server {node['server']} ({node['server_address']})"
            lines.append(server if node["tree"] else f"{server}: {WAITS}")
            parents = [place["parent"] for place in node["tree"]]
            lines += branches(parents, partial(_label, node))
    return lines or [NO_JOB]


def _label(node: Values, place: int) -> str:
    of_place = node["tree"][place]
    where = f"{of_place['host']}, {of_place['rack']}" if of_place["rack"] else of_place["host"]
    remark = "; this one" if place == node["place"] else ""
    return f"proxy {place} ({where}): {_workers(of_place['workers'])}{remark}"


def _workers(numbers: Sequence[int]) -> str:
    return f"workers {', '.join(map(str, numbers))}" if numbers else "no workers"


def _of_trees(jobs: Sequence[Values]) -> Iterator[str]:
    for number, job in enumerate(jobs):
        yield f"job {number}"
        for node in job["nodes"]:
            yield from _of_node(node)


def _of_node(node: Values) -> Iterator[str]:
    if node["parent"] is None:
        where = WAITS
    else:
        where = f"place {node['place']} of a {node['shape']} tree, below {node['parent']}"
        if node["parent_since"] is not None:
            where += f" for {time.monotonic() - node['parent_since']:.0f} s"
    yield f"  server {node['server']} ({node['server_address']}): {where}"
    yield (
        f"    workers {node['workers'] or 'none'}, proxies {node['children'] or 'none'}; "
        f"{node['bytes_in'] / 1e6:.1f} MB in, {node['bytes_out'] / 1e6:.1f} MB out"
    )
    for edge in node["edges"]:
        sent = _traffic("sent", edge["bytes_sent"], edge["sent_per_second"])
        received = _traffic("received", edge["bytes_received"], edge["received_per_second"])
        yield f"    {edge['to']}: {sent}; {received}"
    for model in node["models"]:
        yield (
            f'    model "{model["name"]}": clock {model["clock"]}, {model["open_windows"]} open '
            f"windows; copy of {format_bytes(model['copy_bytes'])} at clock {model['copy_clock']}, "
            f"new enough for {model['pulls_at_once']} of {model['pulls']} pulls"
        )


def _traffic(word: str, num_bytes: int, per_second: float) -> str:
    return f"{format_bytes(num_bytes)} {word}, {format_bytes(per_second)}/s"


def _of_shares(jobs: Sequence[Values]) -> Iterator[str]:
    for job in jobs:
        yield (
            f"priority {job['priority']}: job {job['job']}, {job['processes']} processes; "
            f"{job['sent_bytes'] / 1e6:.1f} MB sent, {job['received_bytes'] / 1e6:.1f} MB received"
        )
        for nic in job["nics"]:
            sent = _of_flow("sent", nic["share"], nic["sent_bytes"])
            received = _of_flow("received", nic["share_of_arrivals"], nic["received_bytes"])
            yield f"  {nic['interface']}: {sent}; {received}"


def _of_flow(word: str, share: float, num_bytes: int) -> str:
    now = f"{share:.0%} of it now" if share else "idle or alone"
    return f"{num_bytes / 1e6:.1f} MB {word}, {now}"
