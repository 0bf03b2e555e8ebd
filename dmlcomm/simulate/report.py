"""What ``dmlcomm simulate`` prints."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dmlcomm import _shell
from dmlcomm.simulate.run import JobResult, LinkResult, Result
from dmlcomm.simulate.scenario import Scenario
from dmlcomm.units import format_bytes, format_rate

if TYPE_CHECKING:
    from rich.table import Table

# Of NICs, each way, and of those between switches.
MOST_LINKS = 8


def as_json(scenario: Scenario, seed: int, result: Result) -> dict[str, Any]:
    """Everything, in seconds, bytes and bits per second."""
    return {
        "topology": scenario.topology,
        "seed": seed,
        "makespan_s": result.makespan_s,
        "jobs": [_job_as_json(job) for job in result.jobs],
        "links": [
            {
                "host": link.nic.host,
                "rails": list(link.nic.rails),
                "direction": _direction(link),
                "bytes": link.num_bytes,
                "utilisation": link.utilisation,
            }
            for link in result.links
        ],
        "trunks": [
            {"name": trunk.name, "bytes": trunk.num_bytes, "utilisation": trunk.utilisation}
            for trunk in result.trunks
        ],
    }


def _job_as_json(result: JobResult) -> dict[str, Any]:
    return {
        "name": result.job.name,
        "op": result.job.op,
        "algorithm": result.algorithm,
        "bytes": result.job.num_bytes,
        "hosts": list(result.job.hosts),
        "seconds": result.seconds,
        "throughput_bps": result.throughput_bps,
        "steps": [
            {"begin_s": step.begin_s, "operation_s": step.operation_s, "end_s": step.end_s}
            for step in result.steps
        ],
    }


def heading(scenario: Scenario, result: Result) -> str:
    """The network, and the time of the whole."""
    network = scenario.network
    rates = ", ".join(format_rate(rate) for rate in network.rates_bps)
    return (
        f"{scenario.topology}: {network.num_hosts} hosts, {network.ranks_per_host} ranks each, "
        f"{len(network.rates_bps)} NICs ({rates})\nAll is done after {_time(result.makespan_s)}."
    )


def tables(result: Result) -> "Iterator[Table]":
    """Of the jobs, and of the links that were used most."""
    jobs = _shell.new_table(
        "Jobs", *("job", "operation", "size", "algorithm", "hosts", "steps", "time"),
        "operation, mean (longest)", "throughput",
    )  # fmt: skip
    for job in result.jobs:
        times = [step.operation_s for step in job.steps]
        jobs.add_row(
            job.job.name,
            job.job.op,
            format_bytes(job.job.num_bytes),
            job.algorithm,
            str(len(job.job.hosts)),
            str(len(job.steps)),
            _time(job.seconds),
            f"{_time(sum(times) / len(times))} ({_time(max(times))})",
            format_rate(job.throughput_bps),
        )
    yield jobs
    yield _links(result)
    if result.trunks:
        yield _trunks(result)


def _links(result: Result) -> "Table":
    used = sorted(result.links, key=lambda link: -link.utilisation)[:MOST_LINKS]
    title = f"Links: the {len(used)} of {len(result.links)} that were used most"
    links = _shell.new_table(title, "host", "NIC", "direction", "carried", "utilisation")
    for link in used:
        nic = ", ".join(map(str, link.nic.rails))
        links.add_row(
            str(link.nic.host),
            nic,
            _direction(link),
            format_bytes(link.num_bytes),
            f"{link.utilisation:.1%}",
        )
    return links


def _trunks(result: Result) -> "Table":
    used = sorted(result.trunks, key=lambda trunk: -trunk.utilisation)[:MOST_LINKS]
    title = f"Between switches: the {len(used)} of {len(result.trunks)} that were used most"
    table = _shell.new_table(title, "trunk", "carried", "utilisation")
    for trunk in used:
        table.add_row(trunk.name, format_bytes(trunk.num_bytes), f"{trunk.utilisation:.1%}")
    return table


def _direction(link: LinkResult) -> str:
    return "sends" if link.sends else "receives"


def _time(seconds: float) -> str:
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"
