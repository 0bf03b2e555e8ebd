"""An all_reduce repeated, while the cable of one NIC is pulled and later put back."""

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

from benchmarks.barrier import barrier_file
from benchmarks.lab_run import all_reduce_bound_s, from_line
from benchmarks.multi_nic.settings import MTU, RATE
from dmlcomm.lab import Lab, Options
from dmlcomm.lab.cpu import CpuMeter
from dmlcomm.topology import graph as topology

PLACE = "host1:eth1"
ITERATIONS_BEFORE = 4
# The cable is pulled when this share of the bound has passed since the iteration began.
MOMENT = 0.4
RECOVERED = 1.1  # x the median before


@dataclass
class Outcome:
    """Seconds of every iteration, by the state of the cable.

    Attributes:
        hit_s: of the iteration during which it was pulled.
        wrong: elements that differ from the undisturbed result in any bit, over all iterations
            and ranks, and elements of that result that are wrong or not the same on all ranks.
        recovery_s: from the cable being back to the end of the first iteration at full speed.
        cpu_stolen: share of its cores' time that a virtual machine was not given meanwhile.
    """

    nics: int
    bound_s: float
    before_s: list[float] = field(default_factory=list)
    hit_s: float = 0.0
    down_s: list[float] = field(default_factory=list)
    up_s: list[float] = field(default_factory=list)
    wrong: int = 0
    recovery_s: float | None = None
    cpu_stolen: float = 0.0


def run(
    spec: str, size: int, iterations_down: int, iterations_up: int, forwarding: bool = True
) -> Outcome:
    """Runs in a lab of its own. Ends the program if a rank fails."""
    pulled_in = ITERATIONS_BEFORE
    put_back_in = pulled_in + 1 + iterations_down
    total = put_back_in + iterations_up
    command = [sys.executable, "-m", "benchmarks.multi_nic.repeat_rank"]
    command += [str(size), str(total), "random"]
    with Lab(spec, rate=RATE, options=Options(mtu=MTU, forwarding=forwarding)) as lab:
        graph = lab.graph()
        bound_s = all_reduce_bound_s(graph, size)
        outcome = Outcome(len(topology.interfaces(graph, "host0")), bound_s)
        put_back_at = 0.0
        meter = CpuMeter()
        # gloo, with which the ranks meet, stays off the links that are measured. Bits are compared,
        # and another algorithm would add in another order.
        options = ("-e", "GLOO_SOCKET_IFNAME=mgmt0", "-e", "DMLCOMM_AUTOTUNE=0")
        with (
            barrier_file(len(topology.hosts(graph))) as barrier,
            lab.popen_run(
                [*command, barrier], *options, stdout=subprocess.PIPE, text=True
            ) as ranks,
        ):
            for event in map(from_line, ranks.stdout):
                if event.get("begins") == pulled_in:
                    time.sleep(MOMENT * bound_s)
                    lab.set(PLACE, "down")
                elif event.get("begins") == put_back_in:
                    lab.set(PLACE, "up")
                    put_back_at = time.monotonic()
                outcome.wrong += event.get("wrong", 0)
                if "ended" in event:
                    _enter(outcome, event, pulled_in, put_back_in, put_back_at)
        if ranks.returncode != 0:
            raise SystemExit(f"the ranks failed with exit code {ranks.returncode}")
        outcome.cpu_stolen = meter.use().stolen
    return outcome


def _enter(
    outcome: Outcome, event: dict, pulled_in: int, put_back_in: int, put_back_at: float
) -> None:
    """Puts an iteration where it belongs."""
    number, seconds = event["ended"], event["seconds"]
    if number < pulled_in:
        outcome.before_s.append(seconds)
    elif number == pulled_in:
        outcome.hit_s = seconds
    elif number < put_back_in:
        outcome.down_s.append(seconds)
    else:
        outcome.up_s.append(seconds)
        full_speed = seconds <= RECOVERED * statistics.median(outcome.before_s)
        if full_speed and outcome.recovery_s is None:
            outcome.recovery_s = max(0.0, event["at"] - put_back_at)
