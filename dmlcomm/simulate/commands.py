"""``dmlcomm simulate``: the command line."""

import json
import sys
from pathlib import Path

import click

from dmlcomm import _shell
from dmlcomm.simulate import report, scenario
from dmlcomm.simulate.picture import draw
from dmlcomm.simulate.run import Player, Result


@click.command()
@click.argument("file")
@click.option("--seed", default=0, help="Draws the jitter of computations.")
@click.option(
    "--picture",
    type=_shell.PATH,
    help="Draw jobs and the use of links as a PNG; needs matplotlib.",
)
@_shell.json_option
def simulate(file: str, seed: int, picture: Path | None, as_json: bool) -> None:
    """Play jobs on a network flow by flow: times, throughput, and how much links are used.

    Jobs send the schedules that ranks execute. Queues and losses are not simulated.

    FILE is the scenario, a YAML file.
    """
    try:
        wanted = scenario.load(file)
        result = _run(Player(wanted, seed))
        if picture is not None:
            draw(result, wanted.topology, picture)
    except ValueError as error:
        _shell.fail(error)
    if as_json:
        print(json.dumps(report.as_json(wanted, seed, result), indent=2))
        return
    console = _shell.console()
    console.print(report.heading(wanted, result), highlight=False)
    for table in report.tables(result):
        console.print(table)


def _run(player: Player) -> Result:
    """With a progress bar, if somebody looks."""
    if not sys.stderr.isatty():
        return player.run()
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("simulating", total=player.num_tasks)
        return player.run(lambda num_ended: progress.update(bar, completed=num_ended))
