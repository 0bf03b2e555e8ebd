"""The table of the TensorExpress paper: one server, three workers, layers 0 to 2 of VGG-16.

All workers send at the same time, the last layer first, as back-propagation ends. The port of the
switch to the server is the bottleneck, as the software switch is in the paper.

plain        no tickets, one queue per port of the switch
host         the layer's number is the ticket, so layers have a connection each (docs/tickets.md);
             the switch does not look
connections  no tickets, but a process group per layer, and so a connection, which is what packets
             need to overtake each other; the switch does not look
network      the same with tickets, and the switch schedules
both         one process group: tickets at the host, and the switch schedules

Blocking time is the delay of layer 0: from when the worker has it until the server has all of it.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field

from benchmarks.barrier import barrier_file, open_barrier
from benchmarks.lab_run import from_line
from benchmarks.prio.settings import Settings
from benchmarks.prio.switch_rank import Run
from benchmarks.row import Row
from benchmarks.training.models import BYTES_PER_PARAMETER, MODELS
from dmlcomm.lab import Lab, Options

TOPOLOGY = "flat:4,1"
NUM_WORKERS = 3
NUM_LAYERS = 3
MTU = 1500
# All bytes take as long as in the paper: 1.36 MB until 856 ms.
SERVER_RATE = "12.7mbit"
WORKER_RATE = "127mbit"
GAP_S = 0.05
# Two frames, 2 ms at the server's rate: the default, 64 KiB, would be 41 ms.
SLIDE_BYTES = 3_000

# What the switch's part is compared with: the same connections.
REFERENCE = "connections"
# Contestant -> (tickets, a group per layer, the switch schedules).
CONTESTANTS = {
    "plain": (False, False, False),
    "host": (True, False, False),
    REFERENCE: (False, True, False),
    "network": (True, True, True),
    "both": (True, False, True),
}

# Those whose packets can overtake each other in the switch.
SCHEDULED = ("network", "both")
# Of the mean over the workers, for these against the reference.
MOST_BLOCKING = 1 - 0.46
MOST_LAST_LAYER = 1 + 0.115


@dataclass
class Outcome:
    """Of one contestant.

    Attributes:
        delays_s: of every round, by worker and layer.
        wires: of every round, as `switch_rank` records them.
        wrong: bytes.
    """

    delays_s: list[list[list[float]]] = field(default_factory=list)
    wires: list[list[dict]] = field(default_factory=list)
    wrong: int = 0

    def median_s(self, worker: int, layer: int) -> float:
        return statistics.median(delays[worker][layer] for delays in self.delays_s)

    def mean_s(self, layer: int) -> float:
        """Over the workers, of the medians over the rounds."""
        return statistics.mean(self.median_s(worker, layer) for worker in range(NUM_WORKERS))

    def typical_wire(self) -> list[dict]:
        """Of the round whose blocking time is nearest to the median."""
        sums = [sum(worker[0] for worker in delays) for delays in self.delays_s]
        middle = statistics.median_low(sums)
        return self.wires[sums.index(middle)]


def layer_bytes() -> tuple[int, ...]:
    layers = MODELS["vgg16"]().layers[:NUM_LAYERS]
    return tuple(layer.parameters * BYTES_PER_PARAMETER for layer in layers)


def measure(num_rounds: int) -> dict[str, Outcome]:
    """The contestants in turns, in one lab, after a round that does not count."""
    names = list(CONTESTANTS) * (1 + num_rounds)
    runs = [Run(name, layer_bytes(), GAP_S, *CONTESTANTS[name][:2]) for name in names]
    outcomes = {name: Outcome() for name in CONTESTANTS}
    with Lab(TOPOLOGY, rate=WORKER_RATE, options=Options(mtu=MTU)) as lab:
        lab.set("host0:eth0", f"rate={SERVER_RATE}")
        for worker in range(1, NUM_WORKERS + 1):
            # The switch gets frames, as from a cable, and not the large packets of veth pairs.
            frames = ["ip", "link", "set", "eth0", "gso_max_segs", "1"]
            lab.exec(f"host{worker}", frames, check=True)
        with barrier_file(NUM_WORKERS + 2) as path:
            command = [sys.executable, "-m", "benchmarks.prio.switch_rank"]
            command += [json.dumps([asdict(run) for run in runs]), path]
            options = ("-e", "GLOO_SOCKET_IFNAME=mgmt0")
            with lab.popen_run(command, *options, stdout=subprocess.PIPE, text=True) as ranks:
                barrier = open_barrier(path, NUM_WORKERS + 1)
                is_scheduled = False
                for number, name in enumerate(names):
                    if CONTESTANTS[name][2] != is_scheduled:
                        is_scheduled = not is_scheduled
                        schedule(lab, is_scheduled, SLIDE_BYTES)
                    barrier.wait()
                    barrier.leave()
                    line = from_line(ranks.stdout.readline())
                    if number >= len(CONTESTANTS):
                        outcomes[name].delays_s.append(line["delays_s"])
                        outcomes[name].wires.append(line["wire"])
                    outcomes[name].wrong += line["wrong"]
            if ranks.returncode != 0:
                raise SystemExit(f"the ranks failed with exit code {ranks.returncode}")
    return outcomes


def schedule(lab: Lab, wanted: bool, slide_bytes: int | None = None) -> None:
    """Makes the switches of a lab schedule by tickets, or stops that."""
    words = [sys.executable, "-m", "dmlcomm", "switch", "start" if wanted else "stop"]
    if wanted and slide_bytes is not None:
        words += ["--slide-bytes", str(slide_bytes)]
    done = subprocess.run([*words, "--lab", lab.name], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)


def rows(outcomes: dict[str, Outcome]) -> list[Row]:
    """Layer by layer, against the reference."""
    found = []
    for name, outcome in outcomes.items():
        for layer in range(NUM_LAYERS):
            found.append(_row(name, layer, outcome, outcomes[REFERENCE]))
    return found


def _row(name: str, layer: int, outcome: Outcome, reference: Outcome) -> Row:
    seconds, reference_s = outcome.mean_s(layer), reference.mean_s(layer)
    bars = {0: 1 / MOST_BLOCKING, NUM_LAYERS - 1: 1 / MOST_LAST_LAYER}
    workers = [f"{outcome.median_s(worker, layer) * 1e3:.0f}" for worker in range(NUM_WORKERS)]
    return Row(
        experiment="switch",
        case=f"layer {layer}, {name}",
        seconds=seconds,
        peer=None if name == REFERENCE else REFERENCE,
        peer_s=None if name == REFERENCE else reference_s,
        least_speedup=bars.get(layer) if name in SCHEDULED else None,
        wrong=outcome.wrong,
        remark=f"{seconds / reference_s - 1:+.0%}; workers {', '.join(workers)} ms",
    )


def switch(settings: Settings) -> list[Row]:
    return rows(measure(settings.switch_rounds))
