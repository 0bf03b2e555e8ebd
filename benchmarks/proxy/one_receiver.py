"""Two jobs of different hosts that send to one: they meet at its NIC, and at its switch's port.

A job of priority 0 broadcasts from the second host to the first, and one of priority 7 from the
third. The arbiter of the first host makes the latter read slowly; `dmlcomm switch` sends packets of
the first class first, which it knows by their DSCPs.
"""

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.proxy import priorities
from benchmarks.proxy.priorities import NUM_BYTES, RATE, Outcome
from benchmarks.row import Row
from dmlcomm.lab import Lab

HOSTS = 3
CLASSES = 2
# Of the first job and of the other: rank 0 is on the host that both send to.
FIRST_HOSTS, LAST_HOSTS = (0, 1), (0, 2)
# So that the switch's window stays where it is, and each class has its queue.
SLIDE_BYTES = 1 << 30


def rows(steps: int) -> list[Row]:
    with Lab(f"flat:{HOSTS},1", rate=RATE) as lab, tempfile.TemporaryDirectory() as folder:
        with priorities.proxies(lab, folder, "--classes", str(CLASSES)):
            alone = measure(lab, folder, steps, is_alone=True)
            arbitrated = measure(lab, folder, steps)
            with scheduled(lab):
                both = measure(lab, folder, steps)
        few = max(1, steps // priorities.STEPS_PER_SLOW_STEP)
        without = measure(lab, "", few)
    least = statistics.median(alone.seconds)

    def row(name: str, outcome: Outcome) -> Row:
        share = outcome.bulk_share
        return Row(
            experiment="jobs of two hosts, one receiver",
            case=f"{NUM_BYTES // 10**6} MB per step, computing as long: {name}",
            seconds=statistics.median(outcome.seconds),
            bound_s=least,
            wrong=outcome.wrong,
            remark="" if share is None else f"the other job sent {share:.0%} of the bytes",
        )

    return [
        row("alone", alone),
        row("the arbiter of the receiver", arbitrated),
        row("the arbiter, and the switch by classes", both),
        row("without a proxy", without),
    ]


def measure(
    lab: Lab,
    folder: str,
    steps: int,
    *,
    is_alone: bool = False,
    compute_s: float = priorities.COMPUTE_S,
) -> Outcome:
    """Steps of the first job, with proxies at HOST.sock in the folder; none if that is empty."""
    jobs = [] if is_alone else [LAST_HOSTS]
    return priorities.measure(
        *(lab, folder, steps, jobs),
        hosts=FIRST_HOSTS,
        compute_s=compute_s,
        operation="broadcast",
    )


@contextlib.contextmanager
def scheduled(lab: Lab) -> Iterator[None]:
    """The lab's switch serves packets by their DSCPs."""
    switch = [sys.executable, "-m", "dmlcomm", "switch"]
    options = ["--slide-bytes", str(SLIDE_BYTES)]
    subprocess.run([*switch, "start", "--lab", lab.name, *options], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*switch, "stop", "--lab", lab.name], check=True, capture_output=True)
