"""An all_reduce repeated in one job, while the network changes from phase to phase."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from benchmarks.barrier import barrier_file
from benchmarks.lab_run import from_line
from dmlcomm.lab import Lab, Options
from dmlcomm.lab.cpu import CpuMeter
from dmlcomm.topology import graph as topology


@dataclass
class Phase:
    """Some iterations of a job, under one condition.

    Attributes:
        condition: what the network is like while the context lasts; it begins and ends during the
            first iteration of a phase.
        seconds: of every iteration, when the job has run.
    """

    iterations: int
    condition: Callable[[Lab], AbstractContextManager[None]]
    seconds: list[float] = field(default_factory=list)


def run(
    spec: str, rate: str, size: int, phases: Sequence[Phase], options: Options, *env: str
) -> tuple[int, float]:
    """Fills the phases' ``seconds``, in a lab of its own. Ends the program if a rank fails.

    Args:
        env: NAME=VALUE for the ranks.

    Returns:
        Wrong elements over all iterations and ranks, and the share of its cores' time that a
        virtual machine was not given meanwhile.
    """
    of_iteration = [phase for phase in phases for _ in range(phase.iterations)]
    command = [sys.executable, "-m", "benchmarks.multi_nic.repeat_rank", str(size)]
    command += [str(len(of_iteration)), "exact"]
    # gloo, with which the ranks meet, stays off the links that are measured.
    assignments = ("GLOO_SOCKET_IFNAME=mgmt0", *env)
    arguments = [word for assignment in assignments for word in ("-e", assignment)]
    with Lab(spec, rate=rate, options=options) as lab, ExitStack() as condition:
        meter, wrong, current = CpuMeter(), 0, None
        with (
            barrier_file(len(topology.hosts(lab.graph()))) as barrier,
            lab.popen_run(
                [*command, barrier], *arguments, stdout=subprocess.PIPE, text=True
            ) as ranks,
        ):
            for event in map(from_line, ranks.stdout):
                wrong += event.get("wrong", 0)
                if "begins" in event and of_iteration[event["begins"]] is not current:
                    current = of_iteration[event["begins"]]
                    condition.close()
                    condition.enter_context(current.condition(lab))
                if "ended" in event:
                    of_iteration[event["ended"]].seconds.append(event["seconds"])
        if ranks.returncode != 0:
            raise SystemExit(f"the ranks failed with exit code {ranks.returncode}")
        return wrong, meter.use().stolen
