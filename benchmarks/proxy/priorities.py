"""A job of priority 0 beside one to three of priority 7, on the same hosts of a lab.

The jobs are process groups, or groups whose all_reduce goes by proxies to a server of each job.
"""

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
from dmlcomm.lab.environment import only_data_nics
from dmlcomm.network import proxy_socket
from dmlcomm.ps.run_command import READY_LINE
from dmlcomm.topology import graph as topology

HOSTS = 2
RATE = "200mbit"
RATE_BPS = 200e6
# One all_reduce moves so many bytes over each NIC, each way.
NUM_BYTES = 25_000_000
COMPUTE_S = NUM_BYTES * 8 / RATE_BPS
WARM_UP = 4
ALL_HOSTS = tuple(range(HOSTS))
MOST_BULK_JOBS = 3
FIRST, LAST = 0, 7
MOST_SLOWDOWN = 1.05
LEAST_SHARE = 0.05
# Without a proxy a step takes longer.
STEPS_PER_SLOW_STEP = 3
ANSWER_TIMEOUT_S = 10
BY_SERVERS = "all_reduce=ps"  # DMLCOMM_ALGORITHM


@dataclass(frozen=True)
class Outcome:
    """Of the first job: seconds of its steps, and the others' part of the bytes meanwhile."""

    seconds: list[float]
    wrong: int
    bulk_share: float | None


def rows(steps: int, by_servers: bool = False) -> list[Row]:
    counts = [MOST_BULK_JOBS] if by_servers else range(1, MOST_BULK_JOBS + 1)
    most = [ALL_HOSTS] * MOST_BULK_JOBS
    few = max(1, steps // STEPS_PER_SLOW_STEP)
    with Lab(f"flat:{HOSTS},1", rate=RATE) as lab, tempfile.TemporaryDirectory() as folder:
        with proxies(lab, folder, *(["--insecure"] if by_servers else [])):
            alone = measure(lab, folder, steps, [], by_servers=by_servers)
            beside = {
                number: measure(lab, folder, steps, [ALL_HOSTS] * number, by_servers=by_servers)
                for number in counts
            }
        without = measure(lab, "", few, most, by_servers=by_servers)
    least = statistics.median(alone.seconds)
    way = ", by proxies and servers" if by_servers else ""
    case = f"{NUM_BYTES // 10**6} MB per step, computing as long, {HOSTS} hosts{way}"

    def row(name: str, outcome: Outcome, most_of_bound: float | None, remark: str) -> Row:
        return Row(
            experiment="job of priority 0",
            case=f"{case}: {name}",
            seconds=statistics.median(outcome.seconds),
            bound_s=least,
            most_of_bound=most_of_bound,
            wrong=outcome.wrong,
            remark=remark,
        )

    return [
        row("alone", alone, None, "the bound of the others"),
        *(
            row(f"beside {n} of priority 7", outcome, MOST_SLOWDOWN, _share(outcome))
            for n, outcome in beside.items()
        ),
        row(f"beside {MOST_BULK_JOBS}, without a proxy", without, None, ""),
    ]


def _share(outcome: Outcome) -> str:
    share = outcome.bulk_share or 0.0
    enough = "enough" if share >= LEAST_SHARE else f"LESS than {LEAST_SHARE:.0%}"
    return f"the others sent {share:.0%}: {enough}"


@contextlib.contextmanager
def proxies(lab: Lab, folder: str, *options: str) -> Iterator[None]:
    """One per host, at HOST.sock in the folder, with these options of `serve`."""
    with contextlib.ExitStack() as stack:
        graph = lab.graph()
        for number, host in enumerate(topology.hosts(graph)):
            command = ["proxy", "serve", "--socket", f"{folder}/{number}.sock", *options]
            process = lab.popen(
                host,
                [sys.executable, "-m", "dmlcomm", *command, "--log-level", "warning"],
                stdout=subprocess.PIPE,
                text=True,
                env=inherited_environment() | only_data_nics(graph, host),
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
    by_servers: bool = False,
) -> Outcome:
    """A job on `hosts` beside others, each of which has its hosts.

    With the proxies at HOST.sock in the folder; none with an empty one. `by_servers`: each job's
    all_reduce goes to a server of its own on the first host, by the proxies if there are any.
    """
    with contextlib.ExitStack() as stack:

        def start(priority: int, on: Sequence[int], *options: str) -> subprocess.Popen:
            environment = {"DMLCOMM_JOB_PRIORITY": str(priority)}
            if by_servers:
                address = _start_server(stack, lab, folder, environment, len(on))
                environment |= {"DMLCOMM_PS_SERVERS": address, "DMLCOMM_ALGORITHM": BY_SERVERS}
            command = ["--operation", operation, *options]
            job = _start(lab, folder, environment, on, *command)
            stack.callback(_stop, job)
            _line(job)
            return job

        for others in bulk_jobs:
            start(LAST, others, "--steps", "1000000")
        options = ["--compute", str(compute_s), "--warm-up", str(WARM_UP), "--steps", str(steps)]
        first = start(FIRST, hosts, *options)
        before = _sent(folder) if folder else {}
        result = from_line(_line(first))
        after = _sent(folder) if folder else {}
    sent = {key: after[key] - before[key] for key in before}
    share = sent[LAST] / sum(sent.values()) if bulk_jobs and folder else None
    return Outcome(result["seconds"], result["wrong"], share)


def _start_server(
    stack: contextlib.ExitStack, lab: Lab, folder: str, environment: dict[str, str], workers: int
) -> str:
    """On the first host; its address."""
    graph = lab.graph()
    host = topology.hosts(graph)[0]
    management = graph.nodes[host]["management"].partition("/")[0]
    command = ["ps", "serve", "--listen", f"{management}:0", "--insecure", "--log-level", "warning"]
    server = lab.popen(
        host,
        [sys.executable, "-m", "dmlcomm", *command, "--workers", str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        env=inherited_environment()
        | only_data_nics(graph, host)
        | {"DMLCOMM_PROXY": f"{folder}/0.sock" if folder else "none", **environment},
    )
    stack.callback(_stop, server)
    return READY_LINE.fullmatch(_line(server).rstrip())[1]


def _start(
    lab: Lab, folder: str, environment: dict[str, str], hosts: Sequence[int], *options: str
) -> subprocess.Popen:
    command = [sys.executable, "-m", "benchmarks.proxy.job_rank"]
    if folder:
        command += ["--proxies", *(f"{folder}/{host}.sock" for host in hosts)]
    return lab.popen_run(
        [*command, "--bytes", str(NUM_BYTES), *options],
        *("--on", ",".join(f"host{host}" for host in hosts)),
        stdout=subprocess.PIPE,
        text=True,
        env=inherited_environment() | environment,
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
