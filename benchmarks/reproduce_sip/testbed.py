"""The testbed of the SiP paper in the lab: circuits are moved while a job trains.

16 servers, 4 at each of 4 ToRs in 2 pods; here with a hundredth of the paper's 10 Gb/s. A job on
servers 5, 6, 9 and 10 (from 1) trains, 12 others send to each other through the core all the time.
Case 1 brings servers 9 and 10 to the ToR of 5 and 6. In case 2 only server 9 is there from the
beginning, and the uplink of server 10's ToR is steered to the aggregation switch of the others.
The paper does not say how much the others send: here it is all that they can, or a little less than
a seventh of a link each, with which the core is nearly full.

Of a step, computing takes as long as the exchange takes alone at one ToR: the paper shows 5 of
10 Gb/s on average there.
"""

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.lab_run import from_line
from benchmarks.simulated import Record
from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology

TOPOLOGY, RATE, RATE_BPS = "sip:2x2x4", "100mbit", 100e6
GRADIENT_BYTES = 2_000_000
# Pairs of the other servers, from 0.
OTHERS = ((0, 12), (1, 13), (2, 14), (3, 15), (6, 10), (7, 11))
RING_HOSTS, SERVER_HOST, WORKER_HOSTS = "host[4589]", "host4", "host[89]"
PORT = 7000
# What each of the others sends at most.
BACKGROUNDS = {"all that they can": None, "14 Mb/s each": "14mbit"}
DARK_S = 0.05
# Steps before circuits are moved, and after that; the first ones after it do not count.
STEPS, UNSETTLED = 8, 3

Moves = dict[str, str]


@dataclass(frozen=True)
class Case:
    """``first``: moves before the job begins; ``then``: while it trains."""

    name: str
    first: Moves
    then: Moves
    paper: dict[str, float]


CASES = (
    Case(
        "1: regrouped",
        {},
        {"host8": "tor2", "host9": "tor2"},
        {"ring": 3.6, "ps": 3.0},
    ),
    Case(
        "2: regrouped in part, then steered",
        {"host8": "tor2"},
        {"tor3": "agg1"},
        {"ring": 2.6, "ps": 1.9},
    ),
)


def testbed() -> Iterator[Record]:
    """A record per background, kind of job and case; times in seconds."""
    for others, rate in BACKGROUNDS.items():
        for kind in ("ring", "ps"):
            for case in CASES:
                found = _measure(kind, case, rate)
                yield {"others": others, "kind": kind, "case": case.name} | found


def plain() -> Iterator[Record]:
    """Case 2 of the parameter server, and the same traffic by plain TCP."""
    for others, rate in BACKGROUNDS.items():
        for kind in ("ps", "tcp"):
            yield {"others": others, "kind": kind, "case": CASES[1].name} | _measure(
                kind, CASES[1], rate
            )


def _measure(kind: str, case: Case, others_rate: str | None) -> Record:
    with Lab(TOPOLOGY, rate=RATE) as lab:
        if others_rate is not None:
            for host in (host for pair in OTHERS for host in pair):
                lab.set(f"host{host}:eth0", f"out={others_rate}")
        if case.first:
            lab.circuit(case.first)
        with _background(lab), _server(lab, kind):
            steps, wrong = _train(lab, kind, case.then)
    before = statistics.median(steps[1:STEPS])
    after = statistics.median(steps[STEPS + UNSETTLED :])
    moved = steps[STEPS : STEPS + UNSETTLED]
    return {
        "before_s": before,
        "after_s": after,
        "ratio": before / after,
        "paper": case.paper["ring" if kind == "ring" else "ps"],
        "longest_moved_s": max(moved),
        "dark_s": DARK_S,
        "wrong": wrong,
    }


def _train(lab: Lab, kind: str, moves: Moves) -> tuple[list[float], int]:
    """Seconds of each step, of the slowest rank; wrong elements of all ranks."""
    exchanged = 2 * 3 / 4 if kind == "ring" else 2 * 2  # gradients over the busiest link
    compute_s = exchanged * GRADIENT_BYTES * 8 / RATE_BPS
    num_steps = 2 * STEPS + UNSETTLED
    command = [sys.executable, "-m", "benchmarks.reproduce_sip.testbed_rank", kind]
    server = topology.ends_of(lab.graph(), SERVER_HOST)[0].ip if kind == "tcp" else _address(lab)
    command += [server, str(GRADIENT_BYTES), str(compute_s), str(num_steps)]
    hosts = RING_HOSTS if kind == "ring" else WORKER_HOSTS
    seconds, wrong, options = [0.0] * num_steps, 0, {"stdout": subprocess.PIPE, "text": True}
    arguments = ("--on", hosts, "-e", "DMLCOMM_ALGORITHM=all_reduce=ring")
    with lab.popen_run(command, *arguments, **options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "{" not in line:
                continue
            told = from_line(line)
            wrong += told.get("wrong", 0)
            if "step" not in told:
                continue
            if told["step"] == STEPS - 1 and seconds[STEPS - 1] == 0:
                lab.circuit(moves, DARK_S)
            seconds[told["step"]] = max(seconds[told["step"]], told["seconds"])
    if process.returncode != 0:
        raise SystemExit(f"the ranks failed with exit code {process.returncode}")
    return seconds, wrong


@contextlib.contextmanager
def _background(lab: Lab) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.reproduce_sip.background", lab.name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("there is no background traffic: see the output above")
        yield


@contextlib.contextmanager
def _server(lab: Lab, kind: str) -> Iterator[None]:
    if kind == "ring":
        yield
        return
    address = _address(lab)
    command = [sys.executable, "-m", "dmlcomm", "ps", "serve", "--servers", address]
    command += ["--listen", address, "--workers", "2", "--insecure", "--log-level", "warning"]
    if kind == "tcp":
        command = [sys.executable, "-m", "benchmarks.reproduce_sip.plain_tcp", str(GRADIENT_BYTES)]
    process = lab.popen(SERVER_HOST, command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"{command[2]} has ended: see the output above")
        yield
    finally:
        process.terminate()
        process.wait()


def _address(lab: Lab) -> str:
    """Of the control plane, on the management network."""
    management = lab.graph().nodes[SERVER_HOST]["management"]
    return f"{management.partition('/')[0]}:{PORT}"


def table(records: list[Record]) -> Iterator[list[str]]:
    yield [
        "others send",
        "job",
        "case",
        "step before",
        "step after",
        "faster",
        "paper",
        "longest step in between",
    ]
    for r in records:
        yield [
            r["others"],
            r["kind"],
            r["case"],
            f"{r['before_s']:.2f} s",
            f"{r['after_s']:.2f} s",
            f"{r['ratio']:.1f}×",
            f"{r['paper']:.1f}×",
            f"{r['longest_moved_s']:.2f} s",
        ]
