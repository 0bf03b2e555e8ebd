"""A job of priority 0 beside three of priority 7, whose ranks are on the same hosts of a lab."""

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.lab_run import from_line
from benchmarks.proxy.cluster import STOP_TIMEOUT_S
from benchmarks.row import Row
from dmlcomm._shell import inherited_environment
from dmlcomm.lab import Lab
from dmlcomm.network import proxy_socket
from dmlcomm.topology import graph as topology

HOSTS = 2
RATE = "200mbit"
RATE_BPS = 200e6
# One all_reduce moves so many bytes over each NIC, each way.
NUM_BYTES = 25_000_000
COMPUTE_S = NUM_BYTES * 8 / RATE_BPS
WARM_UP = 4
ALL_HOSTS = tuple(range(HOSTS))
BULK_JOBS = [ALL_HOSTS] * 3
FIRST, LAST = 0, 7
MOST_SLOWDOWN = 1.05
LEAST_SHARE = 0.05
# Without a proxy a step takes longer.
STEPS_PER_SLOW_STEP = 3
ANSWER_TIMEOUT_S = 10


@dataclass(frozen=True)
class Outcome:
    """Of the first job: seconds of its steps, and the others' part of the bytes meanwhile."""

    seconds: list[float]
    wrong: int
    bulk_share: float | None


def rows(steps: int) -> list[Row]:
    with Lab(f"flat:{HOSTS},1", rate=RATE) as lab, tempfile.TemporaryDirectory() as folder:
        with proxies(lab, folder):
            alone = measure(lab, folder, steps, [])
            beside = measure(lab, folder, steps, BULK_JOBS)
        without = measure(lab, "", max(1, steps // STEPS_PER_SLOW_STEP), BULK_JOBS)
    least = statistics.median(alone.seconds)
    case = f"{NUM_BYTES // 10**6} MB per step, computing as long, {HOSTS} hosts"

    def row(name: str, outcome: Outcome, remark: str) -> Row:
        return Row(
            experiment="job of priority 0",
            case=f"{case}: {name}",
            seconds=statistics.median(outcome.seconds),
            bound_s=least,
            most_of_bound=MOST_SLOWDOWN if outcome is beside else None,
            wrong=outcome.wrong,
            remark=remark,
        )

    share = beside.bulk_share or 0.0
    enough = "enough" if share >= LEAST_SHARE else f"LESS than {LEAST_SHARE:.0%}"
    return [
        row("alone", alone, "the bound of the others"),
        row("beside three jobs of priority 7", beside, f"these sent {share:.0%}: {enough}"),
        row("beside them, without a proxy", without, ""),
    ]


@contextlib.contextmanager
def proxies(lab: Lab, folder: str, *options: str) -> Iterator[None]:
    """One per host, at HOST.sock in the folder, with these options of `serve`."""
    with contextlib.ExitStack() as stack:
        for number, host in enumerate(topology.hosts(lab.graph())):
            command = ["proxy", "serve", "--socket", f"{folder}/{number}.sock", *options]
            process = lab.popen(
                host,
                [sys.executable, "-m", "dmlcomm", *command, "--log-level", "warning"],
                stdout=subprocess.PIPE,
                text=True,
                env=inherited_environment(),
            )
            stack.callback(_stop, process)
            if not process.stdout.readline():
                raise SystemExit(f"dmlcomm proxy ended with {process.wait()} on {host}")
        yield


def _stop(process: subprocess.Popen) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    process.kill()
    process.wait()


def measure(
    lab: Lab,
    folder: str,
    steps: int,
    bulk_jobs: Sequence[Sequence[int]],
    *,
    hosts: Sequence[int] = ALL_HOSTS,
    compute_s: float = COMPUTE_S,
    operation: str = "all_reduce",
) -> Outcome:
    """A job on `hosts` beside others, each of which has its hosts.

    With the proxies at HOST.sock in the folder; none with an empty one.
    """
    with contextlib.ExitStack() as stack:
        for others in bulk_jobs:
            bulk = _start(lab, folder, LAST, others, operation, "--steps", "1000000")
            stack.callback(_stop, bulk)
            _line(bulk)
        options = ["--compute", str(compute_s), "--warm-up", str(WARM_UP), "--steps", str(steps)]
        first = _start(lab, folder, FIRST, hosts, operation, *options)
        stack.callback(_stop, first)
        _line(first)
        before = _sent(folder) if folder else {}
        result = from_line(_line(first))
        after = _sent(folder) if folder else {}
    sent = {key: after[key] - before[key] for key in before}
    share = sent[LAST] / sum(sent.values()) if bulk_jobs and folder else None
    return Outcome(result["seconds"], result["wrong"], share)


def _start(
    lab: Lab, folder: str, priority: int, hosts: Sequence[int], operation: str, *options: str
) -> subprocess.Popen:
    command = [sys.executable, "-m", "benchmarks.proxy.job_rank", "--operation", operation]
    if folder:
        command += ["--proxies", *(f"{folder}/{host}.sock" for host in hosts)]
    return lab.popen_run(
        [*command, "--bytes", str(NUM_BYTES), *options],
        *("--on", ",".join(f"host{host}" for host in hosts)),
        stdout=subprocess.PIPE,
        text=True,
        env=inherited_environment() | {"DMLCOMM_JOB_PRIORITY": str(priority)},
    )


def _line(job: subprocess.Popen) -> str:
    """What rank 0 prints next."""
    line = job.stdout.readline()
    if not line:
        raise SystemExit(f"a job ended with {job.wait()}")
    return line


def _sent(folder: str) -> dict[int, int]:
    """By priority, the bytes that the jobs of the first host have sent and received."""
    answer = proxy_socket.ask(f"{folder}/0.sock", {"status": True}, ANSWER_TIMEOUT_S)
    sent = {FIRST: 0, LAST: 0}
    for job in answer["priorities"]:
        sent[job["priority"]] += job["sent_bytes"] + job["received_bytes"]
    return sent
