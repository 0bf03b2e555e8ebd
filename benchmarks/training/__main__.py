"""Batch completion time of real models between emulated hosts, per backend.

    python -m benchmarks.training --model vgg16 --scale 0.02 --topology flat:4,2 --rate 200mbit

Builds a lab (docs/lab.md) and replays training in it: each worker's backward pass makes the
model's gradients ready layer by layer, in the time that their FLOPs take, and DDP's buckets are
synchronised while it goes on. ``--model digits`` trains the demo's LeNet-5 with DDP instead, for
real. docs/numbers.md says what BCT and JCT are. The exit code is 1 when a sum is wrong.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.arguments import comma_list
from benchmarks.lab_run import json_lines, measured_lines
from benchmarks.training import output
from benchmarks.training.models import MODELS
from benchmarks.training.plan import plan
from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology
from dmlcomm.topology.shape import parse_link_rate
from examples.demo import LOSS_TOLERANCE
from examples.demo import SCRIPT as DEMO_SCRIPT

DIGITS = "digits"


@dataclass(frozen=True)
class Contestant:
    """A backend and the NICs that it is given; gloo is told by `lab run`."""

    backend: str
    all_nics: bool

    @property
    def name(self) -> str:
        return f"{self.backend}, {'all NICs' if self.all_nics else 'one NIC'}"

    @property
    def run_options(self) -> tuple[str, ...]:
        return ("--gloo-nics", "0" if self.all_nics else "1")


CONTESTANTS = {
    "dmlcomm": Contestant("dmlcomm", all_nics=True),
    "gloo": Contestant("gloo", all_nics=False),
    "gloo-all": Contestant("gloo", all_nics=True),
}


def main() -> None:
    options = _parse()
    rate_bps = parse_link_rate(options.rate)
    if rate_bps is None:
        raise SystemExit("a bound needs a rate: --rate 200mbit")
    with Lab(options.topology, rate=options.rate) as lab:
        graph = lab.graph()
        hosts = topology.hosts(graph)
        num_nics = len(topology.interfaces(graph, hosts[0]))
        results = []
        for name in options.backends:
            contestant = CONTESTANTS[name]
            report.console.print(f"{options.model}: {contestant.name} …")
            train = _train_digits if options.model == DIGITS else _replay
            measured = train(lab, contestant, options)
            context = _context(options, rate_bps, len(hosts), num_nics, measured)
            results.append({"contestant": contestant.name, **context})
    report.console.print(output.table(results))
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    output.draw(results, folder / f"{options.model}.png")
    report.append_json_lines(folder / "training.json", [report.environment(), *results])
    if any(result["wrong"] for result in results):
        raise SystemExit(1)
    losses = [result["loss"] for result in results if "loss" in result]
    if losses and max(losses) - min(losses) > LOSS_TOLERANCE:
        raise SystemExit(f"the trainings do not agree: final losses {losses}")


def _replay(lab: Lab, contestant: Contestant, options: argparse.Namespace) -> dict:
    arguments = [options.model, options.batch, options.flops, options.scale]
    arguments += [options.iterations, contestant.backend, "buckets"]
    command = [sys.executable, "-m", "benchmarks.training.rank", *map(str, arguments)]
    return measured_lines(lab, command, contestant.run_options)[-1]


def _train_digits(lab: Lab, contestant: Contestant, options: argparse.Namespace) -> dict:
    """Real DDP training of LeNet-5 on scikit-learn's digits; every rank is on a host of its own."""
    options.folder.mkdir(parents=True, exist_ok=True)
    record = options.folder.resolve() / "digits_record.json"
    command = [sys.executable, str(DEMO_SCRIPT), "--backend", contestant.backend]
    command += ["--epochs", str(options.epochs), "--output", str(record)]
    json_lines(lab, command, contestant.run_options)
    result = json.loads(record.read_text())
    record.unlink()
    last = result["history"][-1]
    return {
        "bct_s": result["step_ms"] / 1000,
        "compute_s": result["local_step_ms"] / 1000,
        "jct_s": last["seconds"],
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "wrong": None,  # sums of real gradients are not known beforehand: losses are compared
    }


def _context(
    options: argparse.Namespace, rate_bps: float, num_workers: int, num_nics: int, measured: dict
) -> dict:
    """What a result needs beside it: bounds, and of what it is one."""
    model = MODELS["lenet5" if options.model == DIGITS else options.model]()
    scale = 1.0 if options.model == DIGITS else options.scale
    iteration = plan(model, options.batch, options.flops, scale)
    gst_bound_s = 2 * (num_workers - 1) / num_workers * iteration.gradient_bytes * 8
    gst_bound_s /= rate_bps * num_nics
    compute_s = measured.get("compute_s", iteration.compute_s)
    forward_s = compute_s * iteration.forward_s / iteration.compute_s
    iterations = math.ceil(model.samples / (options.batch * num_workers)) * options.epochs
    context = {
        "model": options.model,
        "scale": scale,
        "topology": options.topology,
        "rate_bps": rate_bps,
        "workers": num_workers,
        "nics": num_nics,
        "gradient_bytes": iteration.gradient_bytes,
        "compute_s": compute_s,
        "gst_bound_s": gst_bound_s,
        "bound_s": max(compute_s, forward_s + gst_bound_s),
        # Of the model itself: gradients and computing time are scaled alike.
        "jct_s": measured["bct_s"] / scale * iterations,
    }
    return context | measured


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=[*MODELS, DIGITS], default="lenet5")
    parser.add_argument("--topology", default="flat:4,2", help="as for `dmlcomm lab up`")
    parser.add_argument("--rate", default="200mbit", help="of every link")
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and iteration")
    parser.add_argument(
        "--flops", type=float, default=5e12, help="a worker's, per second: how long layers compute"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of gradients and computing time alike"
    )
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1, help="of a job, for its completion time")
    parser.add_argument(
        "--backends",
        type=comma_list(CONTESTANTS, "backend"),
        default=list(CONTESTANTS),
        help=f"comma list of {', '.join(CONTESTANTS)}",
    )
    parser.add_argument("--folder", type=Path, default=Path("bench_output"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
