"""``dmlcomm strategy``: the command line."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from dmlcomm import _shell
from dmlcomm.planning import plan_file
from dmlcomm.planning.network import PlanError
from dmlcomm.strategy.candidates import (
    SHAPES,
    Candidate,
    Outcome,
    candidates,
    play,
    racks_of,
    ranked,
)
from dmlcomm.strategy.request import ALL_REDUCE, Request, load

SHOWN = 12
COLUMNS = ("way", "hosts of servers", "batch", "at most", "x best", "not hidden", "links alone")


@click.command()
@click.argument("file")
@click.option("--seed", default=0, help="Draws the links that switches choose.")
@click.option(
    "--output",
    default="",
    show_default=False,
    help="Write the best as a plan file, for DMLCOMM_PLAN, to this path.",
)
@_shell.json_option
def strategy(file: str, seed: int, output: str, as_json: bool) -> None:
    """Which algorithm, or which parameter servers and tree of proxies, a model trains fastest with.

    Simulates a batch with each candidate, from the layers' sizes and computing times.

    FILE is the cluster and the model, a YAML file.
    """
    try:
        request = load(file)
        outcomes = _play_all(request, seed)
        best = ranked(outcomes)
        if not best:
            raise PlanError(f"nothing of this can be simulated: {outcomes[0].reason}")
        if output:
            plan_file.write(_plan(request, best[0].candidate), output)
    except ValueError as error:
        _shell.fail(error)
    if as_json:
        print(json.dumps(_as_json(request, outcomes), indent=2))
        return
    console = _shell.console()
    ranks = request.empty.network.ranks_per_host
    hosts = f" on {len(request.workers)} hosts" if ranks > 1 else ""
    console.print(
        f"{request.network['topology']}: {ranks * len(request.workers)} workers{hosts}, "
        f"{len(request.buckets)} buckets; a batch computes {request.compute_s:.4g} s",
        highlight=False,
    )
    console.print(_table(request, best))
    for one in outcomes:
        if one.batch_s is None:
            console.print(f"{one.candidate.name}: {one.reason}", highlight=False)


def _play_all(request: Request, seed: int) -> list[Outcome]:
    """With a progress bar, if somebody looks."""
    wanted = list(candidates(request))
    if not sys.stderr.isatty():
        return [play(request, candidate, seed) for candidate in wanted]
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    shown = track(wanted, "simulating", console=console, transient=True)
    return [play(request, candidate, seed) for candidate in shown]


def _table(request: Request, best: Sequence[Outcome]) -> Table:
    title = f"The best {SHOWN} of {len(best)} ways" if len(best) > SHOWN else "Ways"
    found = _shell.new_table(title, *COLUMNS)
    for one in best[:SHOWN]:
        assert one.batch_s is not None
        assert one.most_s is not None
        assert one.links_s is not None
        assert best[0].most_s is not None
        found.add_row(
            one.candidate.name,
            ", ".join(map(str, one.candidate.servers)) or "-",
            f"{one.batch_s:.4g} s",
            f"{one.most_s:.4g} s",
            f"{one.most_s / best[0].most_s:.3f}",
            f"{one.batch_s - request.compute_s:.4g} s",
            f"{one.links_s:.4g} s",
        )
    return found


def _as_json(request: Request, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Times in seconds; the best first, then what cannot be simulated."""
    unknown = [one for one in outcomes if one.batch_s is None]
    return {
        "topology": str(request.network["topology"]),
        "workers": list(request.workers),
        "ranks_per_host": request.empty.network.ranks_per_host,
        "compute_s": request.compute_s,
        "ways": [
            {
                "name": one.candidate.name,
                "algorithm": one.candidate.algorithm,
                "servers": list(one.candidate.servers),
                "tree": SHAPES[one.candidate.tree] if one.candidate.servers else None,
                "placement": one.candidate.placement or None,
                "batch_s": one.batch_s,
                "most_s": one.most_s,
                "links_s": one.links_s,
                "reason": one.reason or None,
            }
            for one in [*ranked(outcomes), *unknown]
        ],
    }


def _plan(request: Request, candidate: Candidate) -> plan_file.PlanFile:
    network = request.empty.network
    if len(request.workers) != network.num_hosts:
        raise PlanError(
            f"a plan file is for jobs on all {network.num_hosts} hosts, and this one has "
            f"{len(request.workers)} workers: leave --output out, or describe these hosts only"
        )
    algorithms = {ALL_REDUCE: {0: candidate.algorithm}} if candidate.algorithm else {}
    of_servers: dict[str, Any] = {}
    if candidate.servers:
        racks = tuple(f"rack{rack}" for rack in racks_of(request))
        of_servers = {"servers": candidate.servers, "tree": SHAPES[candidate.tree], "racks": racks}
    return plan_file.PlanFile(
        hosts=network.num_hosts,
        ranks_per_host=network.ranks_per_host,
        grid=network.sizes,
        algorithms=algorithms,
        prices={"rates_mbit": [round(rate / 1e6, 3) for rate in network.rates_bps]},
        **of_servers,
    )
