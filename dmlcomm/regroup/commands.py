"""``dmlcomm regroup``: the command line."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from dmlcomm import _shell
from dmlcomm.regroup import exact, wiring
from dmlcomm.regroup.cluster import Job, cost, flows_of, pay_back_s, touched
from dmlcomm.regroup.plan import ordered, plan
from dmlcomm.regroup.published import published
from dmlcomm.regroup.request import Request, load
from dmlcomm.regroup.throughput import throughput
from dmlcomm.units import format_rate


@dataclass(frozen=True)
class Row:
    """A plan, and what it gains.

    Attributes:
        cost: of `cluster.cost`.
        circuits: of servers and of uplinks that go dark.
        core_flows: that pass the core.
        mean_bps: mean throughput of the jobs' flows.
        pay_back_s: for jobs that always communicate; None for never.
    """

    name: str
    cost: int
    circuits: int
    core_flows: int
    mean_bps: float
    pay_back_s: float | None


@click.command()
@click.argument("file")
@click.option(
    "--exact", "is_exact", is_flag=True, help="Also find the least cost; needs dmlcomm[plan]."
)
@click.option("--limit", type=float, default=60, help="Seconds of --exact per circuit switch.")
@_shell.json_option
def regroup(file: str, is_exact: bool, limit: float, as_json: bool) -> None:
    """Which ToR each server of a job should be connected to by circuit switches, and what it gains.

    Servers of a job come together under a ToR; then uplinks are steered. The paper's heuristic
    (SiP) stands beside it.

    FILE is the cluster and its jobs, a YAML file.
    """
    try:
        request = load(file)
        seats = plan(request.cluster, request.jobs)
        rows = list(_rows(request, seats))
        best = exact.optimum(request.cluster, request.jobs, limit) if is_exact else None
    except (ValueError, exact.MissingScipyError) as error:
        _shell.fail(error)
    if as_json:
        print(json.dumps(_as_json(request, seats, rows, best), indent=2))
        return
    console = _shell.console()
    console.print(_table(rows))
    if best is not None:
        least = f"{best.cost}" if best.cost == best.bound else f"{best.bound:g} to {best.cost}"
        console.print(f"The least cost is {least}.", highlight=False)


def _rows(request: Request, ours: Sequence[int]) -> Iterator[Row]:
    """As it is, by the paper, and by our plan; each with its uplinks as they are, and steered."""
    cluster, jobs = request.cluster, request.jobs
    before = cluster.first_seats()
    renumbered = [ordered(cluster, job, ours) for job in jobs]
    cases = (
        ("as it is", before, jobs),
        ("published", published(cluster, jobs), jobs),
        ("plan", ours, renumbered),
    )
    step_s = None
    for name, seats, these in cases:
        flows = [flow for job in these for flow in flows_of(job)]
        static = wiring.static(cluster, request.rates.uplinks(cluster))
        steered = wiring.steered(cluster, len(static), wiring.tor_traffic(flows, seats))
        for suffix, wires in (("", static), (", steered", steered)):
            found = throughput(cluster, request.rates, wires, these, seats)
            step_s = found.step_s if step_s is None else step_s
            moved = sum(a != b for plane, old in zip(wires, static, strict=True)
                        for a, b in zip(plane, old, strict=True))  # fmt: skip
            pays = pay_back_s(request.dark_s, step_s, found.step_s)
            yield Row(
                name + suffix,
                cost(cluster, these, seats),
                touched(before, seats) + moved,
                wiring.through_the_core(flows, seats, wires),
                found.mean_bps,
                None if pays == float("inf") else pays,
            )


def _table(rows: Sequence[Row]) -> Any:
    columns = ("cost", "circuits", "flows through the core", "throughput, mean", "pays back")
    table = _shell.new_table("Regrouping", "", *columns)
    for row in rows:
        pays = "never" if row.pay_back_s is None else f"after {row.pay_back_s:.3g} s"
        if not row.circuits:
            pays = "-"
        table.add_row(
            row.name,
            str(row.cost),
            str(row.circuits),
            str(row.core_flows),
            format_rate(row.mean_bps),
            pays,
        )
    return table


def _as_json(
    request: Request, seats: Sequence[int], rows: Sequence[Row], best: exact.Optimum | None
) -> dict[str, Any]:
    jobs: list[Job] = [ordered(request.cluster, job, seats) for job in request.jobs]
    return {
        "plans": [asdict(row) for row in rows],
        "seats": list(seats),
        "ranks": [list(job.servers) for job in jobs],
        "exact": None if best is None else asdict(best),
    }
