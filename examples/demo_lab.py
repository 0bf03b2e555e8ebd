"""The demo's second part: its model between four hosts with two NICs each. `make demo` runs it.

A lab emulates hosts, switches and shaped links on this machine (docs/lab.md). A few steps are
trained with dmlcomm, with gloo on one NIC and with gloo on all of them, and the bytes that each NIC
of a host sends meanwhile are counted. Prints a table and writes lab.png and lab.json to
demo_output/. Fails when the trainings do not agree; where no lab is possible it says why, and ends.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dmlcomm.lab import Lab, LabError
from dmlcomm.lab.client import Client
from dmlcomm.lab.sampling import Reading, read
from dmlcomm.topology import graph as topology

RANK_SCRIPT = Path(__file__).with_name("demo_lab_rank.py")
TOPOLOGY = "bcube:2,2"
RATE = "100mbit"
STEPS = 5
# The backends add in different orders; a few steps amplify that by little.
LOSS_TOLERANCE = 1e-3

CONTESTANTS = {
    "dmlcomm": ("dmlcomm", ()),
    "gloo, one NIC": ("gloo", ("--gloo-nics", "1")),
    "gloo, all NICs": ("gloo", ("--gloo-nics", "0")),
}


@dataclass(frozen=True)
class Result:
    """``sent_bytes``: of a step, by NIC, the mean over hosts, as whole frames."""

    step_s: float
    loss: float
    sent_bytes: dict[str, float]


console = Console(highlight=False)


def main(folder: Path, steps: int = STEPS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"Training between 4 hosts of a lab, {TOPOLOGY}, every NIC with {RATE}.")
    try:
        with Lab(TOPOLOGY, rate=RATE) as lab:
            results = {name: _train(lab, steps, *how) for name, how in CONTESTANTS.items()}
    except LabError as error:
        console.print(f"[yellow]No lab is possible here, so this part is left out:[/] {error}")
        return
    console.print(_table(results))
    console.print("What gloo sends to a host that shares no switch passes through a third one.")
    console.print(f"A picture and records are in {folder}/.")
    _draw(results, folder / "lab.png")
    (folder / "lab.json").write_text(json.dumps({n: vars(r) for n, r in results.items()}, indent=2))
    losses = [result.loss for result in results.values()]
    if max(losses) - min(losses) > LOSS_TOLERANCE:
        raise SystemExit(f"the trainings in the lab do not agree: losses {losses}")


def _train(lab: Lab, steps: int, backend: str, options: tuple[str, ...]) -> Result:
    command = [sys.executable, str(RANK_SCRIPT), backend, str(steps)]
    with (
        Client(lab.name) as client,
        lab.popen_run(command, *options, stdout=subprocess.PIPE, text=True) as ranks,
    ):
        events, readings = [], []
        for line in ranks.stdout:
            readings.append(read(client))
            events.append(json.loads(line[line.index("{") :]))
    if ranks.returncode != 0:
        raise SystemExit(f"training in the lab failed with exit code {ranks.returncode}")
    last = events[-1]
    sent_bytes = _sent_bytes(lab, readings[0], readings[-1], steps)
    return Result(last["step_s"], last["loss"], sent_bytes)


def _sent_bytes(lab: Lab, before: Reading, after: Reading, steps: int) -> dict[str, float]:
    """Per step and NIC, the mean over hosts."""
    graph = lab.graph()
    hosts = topology.hosts(graph)
    return {
        nic: sum(
            after[host]["interfaces"][nic]["bytes"] - before[host]["interfaces"][nic]["bytes"]
            for host in hosts
        )
        / len(hosts)
        / steps
        for nic in topology.interfaces(graph, hosts[0])
    }


def _table(results: dict[str, Result]) -> Table:
    table = Table(title="LeNet-5 between hosts, DDP; one bucket", title_justify="left")
    table.add_column("", no_wrap=True)
    ours = results["dmlcomm"]
    nics = list(ours.sent_bytes)
    for column in ("step", "to dmlcomm's", *(f"{nic} sends" for nic in nics), "loss"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        table.add_row(
            name,
            f"{result.step_s * 1000:.0f} ms",
            f"{result.step_s / ours.step_s:.1f} x",
            *(f"{result.sent_bytes[nic] / 1e6:.1f} MB" for nic in nics),
            f"{result.loss:.4f}",
        )
    return table


def _draw(results: dict[str, Result], path: Path) -> None:
    """Step times, and beside them what each NIC of a host sends in a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, traffic) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    names = list(results)
    times.bar(names, [result.step_s * 1000 for result in results.values()])
    times.set(ylabel="time per step (ms)", title=f"{TOPOLOGY}, {RATE} per NIC")
    nics = list(results[names[0]].sent_bytes)
    width = 0.8 / len(nics)
    for i, nic in enumerate(nics):
        positions = [x + (i - (len(nics) - 1) / 2) * width for x in range(len(names))]
        sent = [result.sent_bytes[nic] / 1e6 for result in results.values()]
        traffic.bar(positions, sent, 0.9 * width, label=nic)
    traffic.set_xticks(range(len(names)), names)
    traffic.set(ylabel="sent per step and host (MB)", title="use of the NICs")
    traffic.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("demo_output"))
    parser.add_argument("--steps", type=int, default=STEPS, help="of training that are measured")
    main(**vars(parser.parse_args()))
