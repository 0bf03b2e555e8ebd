"""The demo: the same training with gloo and with dmlcomm, compared. `make demo` runs this.

Trains LeNet-5 (3,274,634 parameters) on scanned handwritten digits with DDP, on 4 ranks of this
host. Prints a table and writes curves.png, results.json and each run's record to demo_output/.
Fails when the two trainings do not agree, or do not reach the accuracy.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

SCRIPT = Path(__file__).with_name("demo_lenet.py")
BACKENDS = ("gloo", "dmlcomm")
REQUIRED_ACCURACY = 0.97

# The backends add the ranks' gradients in different orders, which changes the last bit of a sum;
# some hundred steps of training amplify that.
LOSS_TOLERANCE = 0.005
ACCURACY_TOLERANCE = 0.01

console = Console(highlight=False)


def run_training(backend: str, num_ranks: int, epochs: int, folder: Path, *arguments: str) -> dict:
    """Runs the script under torchrun, with more arguments, and returns its record."""
    output = folder / f"{backend}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(num_ranks), str(SCRIPT)]
    command += ["--backend", backend, "--epochs", str(epochs), "--output", str(output), *arguments]
    # gloo would look for the interface of the host's name; all ranks are on this host.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, env=environment, check=True)
    return json.loads(output.read_text())


def comparison(results: dict[str, dict]) -> Table:
    table = Table(title="LeNet-5 on handwritten digits, DDP", title_justify="left")
    table.add_column("")
    for backend in results:
        table.add_column(backend, justify="right")
    gloo, ours = results["gloo"], results["dmlcomm"]
    table.add_column("gloo / dmlcomm", justify="right")

    def row(name, shown, ratio=""):
        table.add_row(name, *(shown(result) for result in results.values()), ratio)

    def ratio(key):
        return f"{gloo[key] / ours[key]:.1f}x" if ours[key] > 0 else "-"

    row("final loss", lambda r: f"{r['history'][-1]['loss']:.6f}")
    row("test accuracy", lambda r: f"{r['history'][-1]['accuracy']:.2%}")
    row("time per step", lambda r: f"{r['step_ms']:.1f} ms", ratio("step_ms"))
    row("  without communication", lambda r: f"{r['local_step_ms']:.1f} ms")
    row(
        "  communication not hidden",
        lambda r: f"{r['not_hidden_ms']:.1f} ms",
        ratio("not_hidden_ms"),
    )
    row("  its share of the step", lambda r: f"{r['not_hidden_ms'] / r['step_ms']:.0%}")
    return table


def disagreements(results: dict[str, dict]) -> list[str]:
    """What is wrong with the results, in words."""
    found = []
    for backend, result in results.items():
        accuracy = result["history"][-1]["accuracy"]
        if accuracy < REQUIRED_ACCURACY:
            found.append(f"{backend} reaches {accuracy:.2%}, less than {REQUIRED_ACCURACY:.0%}")
    histories = (result["history"] for result in results.values())
    for epoch, (one, other) in enumerate(zip(*histories, strict=True), start=1):
        for key, tolerance in (("loss", LOSS_TOLERANCE), ("accuracy", ACCURACY_TOLERANCE)):
            if abs(one[key] - other[key]) > tolerance:
                found.append(f"{key} differs in epoch {epoch}: {one[key]:.4f} and {other[key]:.4f}")
    return found


def plot(results: dict[str, dict], path: Path) -> None:
    """Loss over epochs and over time, for both backends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_epoch, by_time) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    styles = {"gloo": {"lw": 4, "alpha": 0.4}, "dmlcomm": {"lw": 1.5}}
    for backend, result in results.items():
        history = result["history"]
        losses = [record["loss"] for record in history]
        by_epoch.plot(range(1, len(losses) + 1), losses, label=backend, **styles[backend])
        by_time.plot([r["seconds"] for r in history], losses, label=backend, **styles[backend])
    by_epoch.set(xlabel="epoch", ylabel="training loss", yscale="log", title="the same result")
    by_time.set(xlabel="seconds", title="sooner")
    for axes in (by_epoch, by_time):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(ranks: int, epochs: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"Training on {ranks} ranks of this host, with gloo and with dmlcomm.")
    results = {name: run_training(name, ranks, epochs, folder) for name in BACKENDS}
    (folder / "results.json").write_text(json.dumps(results, indent=2))
    plot(results, folder / "curves.png")
    console.print()
    console.print(comparison(results))
    console.print(f"Curves and records are in {folder}/.")
    if found := disagreements(results):
        raise SystemExit("\n".join(found))
    console.print("[green]The two trainings agree.[/]")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=Path("demo_output"))
    main(**vars(parser.parse_args()))
